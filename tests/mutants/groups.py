"""Faults of thresholds by group, and of their reader."""

from mutants.mutant import Mutant

_WALKS = "selection/test_adaptive_walks.py::"
_FITS = "selection/test_group_thresholds.py::"
MUTANTS = {
    "delta_not_shared_among_groups": Mutant(
        "selection/families.py",
        "delta / max(count, 1)",
        "delta",
        _FITS + "test_the_walks_are_the_loop_over_groups_and_thresholds",
    ),
    "complete_groups_pass_nothing_on": Mutant(
        "selection/families.py",
        "return delta / max(count - done, 1)",
        "return delta / count + 0 * done",
        _FITS + "test_a_group_that_is_certified_as_a_whole_passes_its_share_on",
    ),
    "bad_groups_counted_once": Mutant(
        "selection/families.py",
        "part / np.sum(times * part)",
        "part / np.sum(part)",
        _WALKS + "test_shares_of_all_possible_bad_groups_sum_to_one",
    ),
    "groups_that_fail_here_do_not_count": Mutant(
        "selection/families.py",
        'side="right"',
        'side="left"',
        _WALKS + "test_levels_and_starts_of_a_group_are_those_that_the_others"
        "_leave",
    ),
    "early_failure_chooses_starts": Mutant(
        "selection/families.py",
        "> max(0.5, one.coverage[first[0]])",
        "> 0.0",
        _WALKS + "test_levels_and_starts_of_a_group_are_those_that_the_others"
        "_leave",
    ),
    "measured_groups": Mutant(
        "inputs/groups.py",
        "measured = [*map(_is_measured, listed)]",
        "measured = [False]",
        _FITS + "test_bad_groups_are_refused",
    ),
}
