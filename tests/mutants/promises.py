"""Faults of what is promised: levels spent twice, ends left out."""

from mutants.mutant import Mutant

_SELECTION = "selection/test_levels.py::"
_MONITORING = "monitoring/test_levels.py::"
_CERTIFICATES = "exporting/test_statements.py::"
MUTANTS = {
    "each_hypothesis_has_all_of_alpha": Mutant(
        "monitoring/monitor.py",
        "-math.log(setup.parts[name])",
        "-math.log(setup.alpha)",
        _MONITORING + "test_all_hypotheses_together_alarm_at_most_at_alpha",
    ),
    "null_wider_than_said": Mutant(
        "formulas/evidence.py",
        "low = np.minimum(low, 1.0 - CLOSEST)[:, None]",
        "low = np.minimum(low - 0.001, 1.0 - CLOSEST)[:, None]",
        _MONITORING + "test_evidence_at_the_limit_is_1_in_the_mean",
    ),
    "two_walks_of_groups_have_all_of_delta": Mutant(
        "selection/families.py",
        "STEPWISE_PART * delta",
        "delta",
        _SELECTION + "test_a_bad_group_is_accepted_as_often_as_its_part_of"
        "_delta_allows",
    ),
    "monotone_targets_with_a_thousandth_more": Mutant(
        "selection/risks.py",
        "certified = p_value <= share",
        "certified = p_value < share + 0.001",
        _SELECTION + "test_a_recall_at_its_limit_is_certified_at_most_at_delta",
    ),
    "answers_at_the_threshold_refused": Mutant(
        "exporting/answer_threshold.py",
        "values >= self._least(values, group)",
        "values > self._least(values, group)",
        "exporting/test_answer_threshold.py::"
        "test_an_answer_at_the_threshold_is_accepted",
    ),
    "links_to_folders_not_covered": Mutant(
        "exporting/statement.py",
        "[*names, *links]",
        "names",
        _CERTIFICATES + "test_links_are_among_the_files_of_an_export",
    ),
    "unknown_facts_accepted": Mutant(
        "exporting/statement.py",
        "if missing or unknown or",
        "if missing or",
        _CERTIFICATES
        + "test_a_certificate_says_nothing_that_its_form_does_not_have",
    ),
}
