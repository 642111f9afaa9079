"""Finds the arguments of a step that are state, and the result that is the next value of each: as stated, or inferred."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from partir.errors import ProgramError, error_text
from partir.frontend.flow import Flow, repeats_rows
from partir.frontend.signature import Arguments, paths_of
from partir.program import Path, matches, no_match

STATE_NAMES = frozenset(["params", "parameters", "weights", "variables", "state", "opt_state", "model"])
"""Argument names that mean state even if no result is its next value: the parameters of a forward function."""

KEY_NAMES = frozenset(["key", "rng", "rngs", "seed"])
"""Argument names that mean random keys, for leaves that can be one (uint32, or scalars)."""

State = Mapping[str | int, int | None] | Sequence[str | int] | str | int
"""What `state=` of `partir.jit` takes: see `stated`."""


@dataclass(frozen=True)
class Found:
    """The state of a step, by leaf numbers: `pairs` of an argument and the result that is its next value, `also` the arguments
    that are state but only read, and a line for the report on everything that was `assumed`."""

    pairs: tuple[tuple[int, int], ...]
    also: frozenset[int] = frozenset()
    assumed: tuple[str, ...] = ()


@dataclass(eq=False)
class _Group:
    """The leaves of one argument, or of one item of the results.

    An argument and a result can be one state if their `below` is equal: path below the group's root, shape, dtype of each leaf.
    """

    name: str
    leaves: list[int] = field(default_factory=list[int])
    below: list[tuple[Path, tuple[int, ...], Any]] = field(default_factory=list[tuple[Path, tuple[int, ...], Any]])

    def add(self, number: int, path: Path, leaf: Any) -> None:
        self.leaves.append(number)
        self.below.append((path, tuple(leaf.shape), leaf.dtype))

    def pairs(self, result: _Group) -> list[tuple[int, int]]:
        """Each leaf with the leaf of `result` that has the same path, shape and dtype; empty unless every leaf has one."""
        there = dict(zip(result.below, result.leaves, strict=True))
        found = [(number, there[own]) for number, own in zip(self.leaves, self.below, strict=True) if own in there]
        return found if len(found) == len(self.leaves) else []


# ---- stated


def stated(state: State, arguments: Arguments, roots: Sequence[Path], out: Any, flow: Flow) -> Found:
    """The state as `state=` of `partir.jit` gives it: a mapping from arguments to results, or a list of arguments alone.

    For a list, each argument gets the best result of its structure that is still free. `roots` are the paths of the positional
    arguments, by number. Raises ProgramError for an argument or result that does not exist, or a pair whose structures differ.
    """
    given = state if isinstance(state, Mapping) else dict.fromkeys([state] if isinstance(state, str | int) else state, _ANY)
    results = _result_groups(out)
    free = list(results)
    pairs: list[tuple[int, int]] = []
    also: set[int] = set()
    for key, wanted in given.items():
        for group in _named(key, arguments, roots):
            also.update(group.leaves)
            if wanted is None:
                continue
            if wanted is _ANY:
                fits = sorted((g for g in free if group.pairs(g)), key=lambda g: (-_score(flow, group.pairs(g)), len(g.leaves)))
                chosen = fits[0] if fits else None
            else:
                chosen = _result(group, wanted, results)
            if chosen is not None and chosen not in free:
                raise ProgramError(error_text(f"two arguments cannot both become {chosen.name}", where=group.name))
            if chosen is not None:
                pairs += group.pairs(chosen)
                free = [g for g in free if g is not chosen]
    return Found(tuple(sorted(pairs)), frozenset(also))


_ANY: Any = object()
"""Stands for whichever result fits."""


def _named(key: str | int, arguments: Arguments, roots: Sequence[Path]) -> list[_Group]:
    """The leaves that one entry of `state=` names, by argument."""
    if isinstance(key, int) and not -len(roots) <= key < len(roots):
        raise ProgramError(error_text(f"state={key} names no argument", why=f"there are {len(roots)} positional arguments"))
    root = roots[key] if isinstance(key, int) else ()
    groups: list[_Group] = []
    for whole in _argument_groups(arguments, roots):
        group = _Group(whole.name)
        for number, (below, *_) in zip(whole.leaves, whole.below, strict=True):
            path, leaf = arguments[number]
            if path[: len(root)] == root if isinstance(key, int) else matches(key, path):
                group.add(number, below, leaf)
        groups += [group] if group.leaves else []
    if not groups and isinstance(key, str):
        raise ProgramError(no_match(key, [path for path, _ in arguments]))
    return groups


def _result(group: _Group, number: Any, results: Sequence[_Group]) -> _Group:
    """The result that a mapping names. Raises ProgramError if it does not exist or cannot be the argument's next value."""
    if not isinstance(number, int) or not 0 <= number < len(results):
        raise ProgramError(
            error_text(f"state={{{group.name!r}: {number!r}}} names no result", why=f"there are {len(results)}, counted from 0")
        )
    found = results[number]
    if not group.pairs(found):
        there = dict(zip((path for path, *_ in found.below), found.below, strict=True))
        path, shape, dtype = next(own for own in group.below if own not in found.below)
        other = there.get(path)
        raise ProgramError(
            error_text(
                f"{group.name} cannot become result {number} of the step",
                where="/".join((group.name, *path)),
                why=f"it is {dtype}{list(shape)}, "
                + (
                    f"the result is {other[2]}{list(other[1])}"
                    if other is not None
                    else f"{found.name} has nothing at that path"
                ),
                hint=f"state={{{group.name!r}: None}} for state that is only read",
            )
        )
    return found


# ---- inferred


def inferred(arguments: Arguments, donated: Sequence[bool], roots: Sequence[Path], out: Any, flow: Flow) -> Found:
    """Infer the state of a step: donated arguments, and of the others those that the step updates (see `_verdict`), each with a
    result of equal structure (the same paths below its root, shapes and dtypes).

    Of several such results an argument gets the one that is computed from it element by element. Arguments for which there is
    such a result choose first; within both rounds donated arguments choose before the others.
    """
    groups = _argument_groups(arguments, roots)
    given: list[_Group] = []
    kept: list[_Group] = []
    for group in groups:
        (given if all(donated[i] for i in group.leaves) else kept).append(group)
    results = _result_groups(out)
    pairs: list[tuple[int, int]] = []
    doubts: list[tuple[_Group, str, bool, str]] = []
    for surely in (True, False):
        for members, is_given in ((given, True), (kept, False)):
            for group in list(members):
                options = [g for g in results if g.below == group.below]
                alike = sum(other.below == group.below for other in groups)
                contested = len(options) > 1 or alike > 1
                scores = [_score(flow, group.pairs(g)) if contested else 1 for g in options]
                if not options or (surely and not max(scores)):
                    continue
                members.remove(group)
                chosen = options[scores.index(max(scores))]
                is_state, doubt = (True, "") if is_given else _verdict(flow, group.pairs(chosen))
                if doubt:
                    doubts.append((group, chosen.name, is_state, doubt))
                if is_state:
                    pairs += group.pairs(chosen)
                    results = [g for g in results if g is not chosen]
    handed = {argument for argument, _ in pairs}
    also, refused = _named_like_state(groups, handed, flow)
    state = handed | also
    lines = [_line(group, name, is_state, doubt, state, groups) for group, name, is_state, doubt in doubts]
    return Found(tuple(sorted(pairs)), also, (*lines, *refused))


def _score(flow: Flow, pairs: Sequence[tuple[int, int]]) -> int:
    """Of these (argument, result) pairs, how many results are computed from their argument element by element and changed."""
    return sum(a in flow.way(r).arguments and not flow.unchanged(a, r) for a, r in pairs)


def _verdict(flow: Flow, pairs: Sequence[tuple[int, int]]) -> tuple[bool, str]:
    """Whether an argument that is not donated is state, given its leaves paired with those of a result; and what makes that
    doubtful ("" if nothing does).

    An argument of several leaves is state, unless each result is a pointwise function of its own argument alone (`sin(x)`).
    """
    if len(pairs) == 1:
        return _verdict_of_leaf(flow, *pairs[0])
    if all(_maps(flow, a, r) for a, r in pairs) and any(flow.rank(a) for a, _ in pairs):
        return False, ""
    updated = any(flow.unchanged(a, r) or flow.way(r).is_written or a in flow.way(r).added_to for a, r in pairs)
    if updated or any(flow.after_backward(r) for _, r in pairs):
        return True, ""
    return True, "the two are alike in structure, but nothing is added to it"


def _maps(flow: Flow, argument: int, result: int) -> bool:
    """Whether a result is a pointwise function of this argument and of no other."""
    way = flow.way(result)
    return set(way.arguments) == {argument} and not flow.unchanged(argument, result) and not flow.arguments_of(way.ends)


def _verdict_of_leaf(flow: Flow, argument: int, result: int) -> tuple[bool, str]:
    """`_verdict` for an argument of a single leaf, where an equal shape may be chance. It is state if it is updated, element by
    element, with values of the backward pass, or with a sum over the batch of an input.

    A result that is a gradient summed over the batch of another argument is paired with its parameter, too: the two should be
    sharded alike.
    """
    way = flow.way(result)
    if flow.unchanged(argument, result):
        return False, "it comes back as it went in"
    updates, backward = argument in way.arguments, flow.after_backward(result)
    ends = [end for end in way.ends if flow.arguments_of([end])]
    if not flow.rank(argument):
        return updates and (backward or bool(ends)), ""
    if not backward and not (updates and (ends or way.is_written)):
        return False, ""
    own = {flow.node(argument, dim) for dim in range(flow.rank(argument))}
    is_batch = any(flow.node(argument, 0) in batch for batch in flow.batches)
    if backward and updates and not is_batch:
        return True, ""
    sums = any(flow.sums_over(result, batch) for batch in flow.batches if own.isdisjoint(batch))
    if backward and not updates:
        return sums and not is_batch, ""
    if backward and sums:
        return True, "its dim 0 looks like a batch, and so does another that the gradient sums over"
    if backward:
        return False, "its dim 0 looks like a batch, and the gradient that is added to it sums over no other"
    rows = [end for end in ends if not repeats_rows(end)]
    if rows and sums and not flow.carries_rows(argument, rows):
        return True, ""
    if way.is_written:
        return False, "it is written to, but no gradient and no sum over a batch is added to it"
    if argument in way.added_to:
        return False, "something is added to it, but no gradient and no sum over a batch"
    return False, ""


def _named_like_state(groups: Sequence[_Group], handed: Collection[int], flow: Flow) -> tuple[frozenset[int], list[str]]:
    """The leaves that are state by the name of their argument alone, and a line for each argument whose use contradicts that.

    `handed` are the leaves that are known to be state.
    """
    found: set[int] = set()
    lines: list[str] = []
    for group in groups:
        if not set(handed).isdisjoint(group.leaves) or group.name not in (*STATE_NAMES, *KEY_NAMES):
            continue
        if group.name in KEY_NAMES:
            found.update(
                i for i, (_, shape, dtype) in zip(group.leaves, group.below, strict=True) if dtype == "uint32" or not shape
            )
            continue
        arrays = [i for i in group.leaves if flow.rank(i)]
        # "state" may also be a batch of environment states, as in reinforcement learning: these are inputs.
        if group.name == "state" and arrays and all(any(flow.node(i, 0) in b for b in flow.batches) for i in arrays):
            option = _state_option({*handed, *found, *group.leaves}, groups)
            lines.append(f"state is taken for an input: its dim 0 looks like a batch; if it is state: state={option}")
        else:
            found.update(group.leaves)
    return frozenset(found), lines


def _line(group: _Group, result: str, is_state: bool, doubt: str, state: Collection[int], groups: Sequence[_Group]) -> str:
    """A line for the report: what was assumed of an argument, why it is in doubt, and the option that says otherwise."""
    if is_state:
        option = _state_option({i for i in state if i not in group.leaves}, groups)
        return f"{group.name} is taken for state that becomes {result}: {doubt}; if it is an input: state={option}"
    option = _state_option({*state, *group.leaves}, groups)
    return f"{group.name} is taken for an input: {doubt}; if it is state that becomes {result}: state={option}"


def _state_option(state: Collection[int], groups: Sequence[_Group]) -> str:
    """The arguments of these leaves, written as `state=` of `partir.jit` takes them."""
    return str([group.name for group in groups if not set(state).isdisjoint(group.leaves)])


def _argument_groups(arguments: Arguments, roots: Collection[Path]) -> list[_Group]:
    """The leaves of each argument. Each item of `*args` is an argument of its own (its root has two levels: `args/0`)."""
    groups: dict[Path, _Group] = {}
    for number, (path, leaf) in enumerate(arguments):
        root = path[:2] if path[:2] in roots else path[:1]
        groups.setdefault(root, _Group("/".join(root))).add(number, path[len(root) :], leaf)
    return list(groups.values())


def _result_groups(out: Any) -> list[_Group]:
    """The groups of results that can each be a state: the items of a tuple or list, or else the whole result."""
    is_several = type(out) in (tuple, list)
    groups: dict[str, _Group] = {}
    for number, (path, leaf) in enumerate(paths_of(out)):
        root = path[:1] if is_several else ()
        groups.setdefault("/".join(root), _Group("/".join(("result", *root)))).add(number, path[len(root) :], leaf)
    return list(groups.values())
