"""Reading XLA's compiled text: which collectives a program really runs.

What XLA on CPU makes of each kind (found by compiling one of each, jax 0.10.2 and 0.12): all_gather, all_reduce,
reduce_scatter and collective_permute stay one instruction each; several all_reduces that are ready together are combined
into one whose operands are a tuple; an all_to_all becomes one with a tuple of as many operands as its group has devices.
A `while` says how often it runs where XLA knows.
"""

import math
import re
from collections import Counter

KINDS = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
}
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(rf"^\s*(?:ROOT )?%?[\w.-]+ = (?P<type>.*?) (?P<kind>{'|'.join(KINDS)})(?:-start)?\(")
_GROUPS = re.compile(r"replica_groups=(?:\{\{(?P<first>[\d,]*)\}|\[(?P<count>\d+),(?P<size>\d+)\]<=)")
_MESH_GROUPS = re.compile(r"replica_groups=mesh\[(?P<mesh>[^\]]*)\] \{(?P<axes>[^}]*)\}")
_CALLED = re.compile(r"\b(?:condition|body|to_apply|calls|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def collectives_in(text: str) -> dict[str, int]:
    """Counts by kind in optimized HLO text, as they were before combining; a loop's body counts as often as it runs.

    >>> collectives_in("%a = (f32[2]{0}, f32[]) all-reduce(%x, %y), replica_groups={{0,1}}, to_apply=%add")
    {'all_reduce': 2}
    >>> collectives_in("%a = (f32[2], f32[2]) all-to-all(%x, %y), replica_groups={{0,1},{2,3}}")
    {'all_to_all': 1}
    >>> collectives_in("ROOT a = f32[8]{0} all-gather(f32[2]{0} b), replica_groups=[2,4]<=[8], dimensions={0}")
    {'all_gather': 1}
    >>> collectives_in("%a = (f32[2], f32[2]) all-to-all(%x, %y), replica_groups=mesh['d'=4,'m'=2] {'m'}")
    {'all_to_all': 1}
    """
    computations: dict[str, list[str]] = {"": []}
    entry = current = ""
    for line in text.splitlines():
        found = _COMPUTATION.match(line)
        if found is not None:
            current = found["name"]
            computations[current] = []
            entry = current if found["entry"] else entry
        else:
            computations[current].append(line)
    counts = _count(computations, entry)
    return {kind: counts[kind] for kind in KINDS.values() if counts[kind]}


def _count(computations: dict[str, list[str]], name: str) -> Counter[str]:
    """The collectives of one computation and of those it calls."""
    counts: Counter[str] = Counter()
    for line in computations.get(name, ()):
        found = _INSTRUCTION.match(line)
        if found is not None:
            operands = _operand_count(line[found.end() :])
            if found["kind"] == "all-to-all" and found["type"].startswith("("):
                operands //= _group_size(line)
            counts[KINDS[found["kind"]]] += operands
            continue
        trips = _TRIPS.search(line)
        branches = _BRANCHES.search(line)
        called = _CALLED.findall(line) + (re.findall(r"[\w.-]+", branches[1]) if branches else [])
        for inner in called:
            for kind, number in _count(computations, inner).items():
                counts[kind] += number * (int(trips[1]) if trips else 1)
    return counts


def _operand_count(text: str) -> int:
    """Operands up to the bracket that closes their list; commas within shapes and layouts do not count."""
    depth, count = 0, 1
    for c in text:
        if c in "([{":
            depth += 1
        elif c == ")" and depth == 0:
            return count
        elif c in ")]}":
            depth -= 1
        elif c == "," and depth == 0:
            count += 1
    raise ValueError(f"an operand list without an end: {text[:80]}")


def _group_size(line: str) -> int:
    """Devices that take part together, in any of the three ways XLA writes them."""
    if (found := _GROUPS.search(line)) is not None:
        return int(found["size"]) if found["size"] else len(found["first"].split(","))
    if (found := _MESH_GROUPS.search(line)) is not None:
        sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", found["mesh"])}
        return math.prod(sizes[name] for name in re.findall(r"'([^']*)'", found["axes"]))
    raise ValueError(f"a collective without replica groups: {line[:120]}")
