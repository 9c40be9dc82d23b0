"""Each fault of `make mutants` still applies to the current code."""

from collections import Counter

import mutants


def test_each_fault_applies_once_and_changes_the_code():
    package = mutants.ROOT / "bertfam"
    counts = Counter((mutant.file, (package / mutant.file).read_text().count(mutant.original)) for mutant in mutants.MUTANTS)
    assert {count for _, count in counts} == {1}, counts
    assert all(mutant.original != mutant.mutated for mutant in mutants.MUTANTS) and len(mutants.MUTANTS) >= 40
    assert all((mutants.ROOT / "tests" / mutant.test).is_file() for mutant in mutants.MUTANTS)
