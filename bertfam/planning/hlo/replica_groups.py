"""Which partitions of a program talk to one another in a collective: every form in which HLO writes it."""

import re

import numpy as np


def replica_groups(attributes: str, count: int) -> np.ndarray:
    """Which of `count` partitions talk to one another: int[groups, members]; the pairs of a collective-permute.

    Of groups of several sizes the smaller repeat their first member.

    Args:
      attributes: what the text of an instruction has after its operands.
      count: the program's partitions; of replicas there is one.

    Raises:
      ValueError: for a form that is not known.
    """
    if pairs := re.search(r"source_target_pairs=\{(.*?)\}\}", attributes):
        return np.array(re.findall(r"(\d+),(\d+)", pairs[1]), np.int64).reshape(-1, 2)
    if iota := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes):
        return _transposed(iota[2], iota[3]).reshape(_numbers(iota[1]))
    if named := re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((\S*)\))? \{([^}]*)\}", attributes):
        return _ids(named[2], count)[_of_axes(named[1], named[3])]
    listed = re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", attributes)
    if listed is None:
        raise ValueError(f"groups of devices are written in a form that is not known: {attributes[:200]}")
    groups = [_numbers(group) for group in re.findall(r"\{([\d,]+)\}", listed[1])]
    if groups in ([], [[0]]):
        # All replicas, of which there is one: with a channel its partitions too, else each by itself.
        return np.arange(count).reshape((1, -1) if "channel_id=" in attributes else (-1, 1))
    most = max(map(len, groups))
    return np.array([group + group[:1] * (most - len(group)) for group in groups])


def _ids(text: str | None, count: int) -> np.ndarray:
    """The partitions in the order of a mesh: "[2,4]T(1,0)", "0,2,1,3", or as they are numbered."""
    if not text:
        return np.arange(count)
    iota = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    return _transposed(iota[1], iota[2]).reshape(-1) if iota else np.array(_numbers(text))


def _transposed(sizes: str, order: str | None) -> np.ndarray:
    source = np.arange(np.prod(_numbers(sizes))).reshape(_numbers(sizes))
    return source.transpose(_numbers(order) if order else None)


def _of_axes(axes: str, over: str) -> np.ndarray:
    """Places in the order of a mesh that talk to one another.

    Args:
      axes: "'a'=2,'b'=4".
      over: the axes over which devices talk, or parts of axes: "'a'", "'b':(2)2", the second 2 of 4 = 2 x 2.
    """
    sizes = {name: int(number) for name, number in re.findall(r"'([^']+)'=(\d+)", axes)}
    talking: dict[str, list[tuple[int, int]]] = {name: [] for name in sizes}
    for name, before, part in re.findall(r"'?([\w.-]+)'?(?::\((\d+)\)(\d+))?", over):
        talking[name].append((int(before or 1), int(part or sizes[name])))
    shape: list[int] = []
    members: list[int] = []
    for name, whole in sizes.items():
        done = 1
        for before, part in sorted(talking[name]):
            shape += [before // done, part]
            members.append(len(shape) - 1)
            done = before * part
        shape.append(whole // done)
    others = [place for place in range(len(shape)) if place not in members]
    ids = np.arange(np.prod(shape)).reshape(shape).transpose([*others, *members])
    return ids.reshape(-1, int(np.prod([shape[place] for place in members])))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
