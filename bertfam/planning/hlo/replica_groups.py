"""Replica groups of a collective: the partitions that communicate, from every notation of HLO text."""

import re

import numpy as np


def replica_groups(attributes: str, count: int) -> np.ndarray:
    """Parse the groups of partitions that communicate, or the pairs of a collective-permute.

    Args:
      attributes: text of an instruction after its operands.
      count: number of the program's partitions; it has one replica.

    Returns:
      int[groups, members]; if the groups have several sizes, the smaller ones repeat their first member.

    Raises:
      ValueError: for an unknown notation.
    """
    if pairs := re.search(r"source_target_pairs=\{(.*?)\}\}", attributes):
        return np.array(re.findall(r"(\d+),(\d+)", pairs[1]), np.int64).reshape(-1, 2)
    if iota := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes):
        return _transposed(iota[2], iota[3]).reshape(_numbers(iota[1]))
    if named := re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((\S*)\))? \{([^}]*)\}", attributes):
        return _ids(named[2], count)[_groups_over(named[1], named[3])]
    listed = re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", attributes)
    if listed is None:
        raise ValueError(f"unknown notation of replica groups: {attributes[:200]}")
    groups = [_numbers(group) for group in re.findall(r"\{([\d,]+)\}", listed[1])]
    if groups in ([], [[0]]):
        # All replicas, of which there is one: with a channel all partitions, else each partition alone.
        return np.arange(count).reshape((1, -1) if "channel_id=" in attributes else (-1, 1))
    most = max(map(len, groups))
    return np.array([group + group[:1] * (most - len(group)) for group in groups])


def _ids(text: str | None, count: int) -> np.ndarray:
    """Parse the partitions in the order of a mesh: "[2,4]T(1,0)" or "0,2,1,3"; by default 0, 1, 2, ..."""
    if not text:
        return np.arange(count)
    iota = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    return _transposed(iota[1], iota[2]).reshape(-1) if iota else np.array(_numbers(text))


def _transposed(sizes: str, order: str | None) -> np.ndarray:
    source = np.arange(np.prod(_numbers(sizes))).reshape(_numbers(sizes))
    return source.transpose(_numbers(order) if order else None)


def _groups_over(axes: str, over: str) -> np.ndarray:
    """Return the groups of positions in a mesh that communicate over some of its axes.

    Args:
      axes: names and sizes, "'a'=2,'b'=4".
      over: the axes, or parts of axes: "'a'", or "'b':(2)2", the second 2 of 4 = 2 x 2.
    """
    sizes = {name: int(number) for name, number in re.findall(r"'([^']+)'=(\d+)", axes)}
    used_parts: dict[str, list[tuple[int, int]]] = {name: [] for name in sizes}
    for name, before, part in re.findall(r"'?([\w.-]+)'?(?::\((\d+)\)(\d+))?", over):
        used_parts[name].append((int(before or 1), int(part or sizes[name])))
    shape: list[int] = []
    members: list[int] = []
    for name, whole in sizes.items():
        done = 1
        for before, part in sorted(used_parts[name]):
            shape += [before // done, part]
            members.append(len(shape) - 1)
            done = before * part
        shape.append(whole // done)
    others = [place for place in range(len(shape)) if place not in members]
    ids = np.arange(np.prod(shape)).reshape(shape).transpose([*others, *members])
    return ids.reshape(-1, int(np.prod([shape[place] for place in members])))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
