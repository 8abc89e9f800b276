"""Faults of `monitoring`."""

from mutants.mutant import Mutant

MUTANTS = {
    # A look could choose the mass of a start.
    "mass_grows_with_outcomes": Mutant(
        "monitoring/watch.py",
        "log_evidence(self._opened + sums, self._prior, self._spent)",
        "log_evidence("
        "np.logaddexp(self._wealth, np.log("
        "self._mass * (self._open_count + 1) / BLOCK)) + sums, self._prior, "
        "self._spent - self._mass * (1 - (self._open_count + 1) / BLOCK))",
        "monitoring/test_watch.py::"
        "test_evidence_never_grows_in_the_mean_given_the_past",
    ),
    "sums_of_other_arguments_add": Mutant(
        "monitoring/outcomes.py",
        "if (found != answers * marks).any():",
        "if False:",
        "monitoring/test_monitor_states.py::"
        "test_sums_of_other_arguments_are_refused",
    ),
    "halves_of_sums_add": Mutant(
        "monitoring/outcomes.py",
        "(bits % 1.0 == 0.0)",
        "True",
        "monitoring/test_monitor_states.py::"
        "test_halves_of_even_sums_are_refused",
    ),
    "any_sum_of_factors_adds": Mutant(
        "monitoring/outcomes.py",
        "(factor < least - room) | (factor > most + room)",
        "(factor < least - np.inf)",
        "monitoring/test_monitor_states.py::"
        "test_sums_of_factors_that_no_answers_make_are_refused",
    ),
    "copies_share_answers": Mutant(
        "monitoring/monitor.py",
        "return copy.deepcopy(self.__dict__)",
        "return self.__dict__",
        "monitoring/test_monitor_states.py::"
        "test_copies_of_a_monitor_go_on_by_themselves",
    ),
    "merge_forgets_answers": Mutant(
        "monitoring/waiting.py",
        "if shared:",
        "if False:",
        "monitoring/test_monitor.py::"
        "test_servers_whose_ids_are_not_unique_lose_no_answer",
    ),
    "threads_take_no_turns": Mutant(
        "backend/locks.py",
        "        with STATES, unbroken():\n",
        "        with unbroken():\n",
        "monitoring/test_monitor_states.py::"
        "test_threads_that_share_a_monitor_lose_no_answer",
    ),
    "merge_adds_evidence": Mutant(
        "monitoring/watch.py",
        "np.logaddexp.reduce(wealth) - np.log(len(parts))",
        "np.logaddexp.reduce(wealth)",
        "monitoring/test_monitor.py::"
        "test_merging_takes_the_mean_and_changes_nobody",
    ),
    "loaded_evidence_of_before": Mutant(
        "monitoring/watch.py",
        "value.item())\n        self._remember()",
        "value.item())",
        "monitoring/test_monitor.py::"
        "test_a_saved_monitor_goes_on_as_if_it_had_not_stopped",
    ),
    "expected_share_costs_nothing": Mutant(
        "monitoring/monitor_setup.py",
        'parts["coverage"] /= 2.0',
        'parts["coverage"] /= 1.0',
        "monitoring/test_monitor.py::"
        "test_a_selector_gives_its_risk_and_the_shares_its_data_allow",
    ),
    "second_label_counts": Mutant(
        "monitoring/waiting.py",
        "self._answers[key] = np.nan",
        "pass",
        "monitoring/test_monitor.py::test_bad_labels_are_refused_whole",
    ),
}
