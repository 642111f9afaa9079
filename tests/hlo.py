"""Reading XLA's compiled text: which collectives a program really has.

What XLA on CPU makes of each kind (found by compiling one of each, jax 0.10.2 and 0.12): all_gather, all_reduce,
reduce_scatter and collective_permute stay one instruction each; several all_reduces that are ready together are combined
into one whose operands are a tuple; an all_to_all becomes one with a tuple of as many operands as its group has devices.
"""

import re
from collections import Counter

KINDS = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
}
_INSTRUCTION = re.compile(rf"^\s*(?:ROOT )?%?[\w.-]+ = (?P<type>.*?) (?P<kind>{'|'.join(KINDS)})(?:-start)?\(")
_GROUPS = re.compile(r"replica_groups=(?:\{\{(?P<first>[\d,]*)\}|\[(?P<count>\d+),(?P<size>\d+)\]<=)")


def collectives_in(text: str) -> dict[str, int]:
    """Counts by kind in optimized HLO text, as they were before combining; a loop's body counts once.

    >>> collectives_in("%a = (f32[2]{0}, f32[]) all-reduce(%x, %y), replica_groups={{0,1}}, to_apply=%add")
    {'all_reduce': 2}
    >>> collectives_in("%a = (f32[2], f32[2]) all-to-all(%x, %y), replica_groups={{0,1},{2,3}}")
    {'all_to_all': 1}
    >>> collectives_in("ROOT a = f32[8]{0} all-gather(f32[2]{0} b), replica_groups=[2,4]<=[8], dimensions={0}")
    {'all_gather': 1}
    """
    counts: Counter[str] = Counter()
    for line in text.splitlines():
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        operands = _operand_count(line[found.end() :])
        if found["kind"] == "all-to-all" and found["type"].startswith("("):
            operands //= _group_size(line)
        counts[KINDS[found["kind"]]] += operands
    return {kind: counts[kind] for kind in KINDS.values() if counts[kind]}


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
    found = _GROUPS.search(line)
    if found is None:
        raise ValueError(f"a collective without replica groups: {line[:120]}")
    return int(found["size"]) if found["size"] else len(found["first"].split(","))
