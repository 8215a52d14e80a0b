"""Which of the real jobs ``make test`` runs: between them they touch every component once.

Chosen by what only a real run can show; what is pure is tested by ``make check``. The others run
in ``make test-all``. A pytest plugin: it marks them ``chosen``.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

TESTS = Path(__file__).parents[1]
BY_FORKS = "test_the_verdict_is_the_same_where_the_program_forks_its_ranks"
BY_TORCHRUN = "test_the_verdict_on_a_program_is_what_its_header_says"
OF_A_FRAMEWORK = "test_the_verdict_on_a_program_of_a_framework_is_what_its_header_says"
ZOO = {
    BY_FORKS: (
        # One of each kind, and the reasons that look alike from outside.
        *("ddp_data_worker_stuck", "ddp_uneven_iterable", "op_mismatch", "metric_shape_mismatch"),
        *("metric_on_first_rank", "tp_dp_order_swapped", "send_without_recv", "new_group_by_some"),
        *("connection_black_hole", "gil_held", "rank_sigstopped", "breakpoint_left_in"),
        *("checkpoint_stuck", "store_wait"),
    ),
    # What ends, and what is well.
    BY_TORCHRUN: ("rank_raises", "rank_sigkilled", "ddp_graphs", "slow_checkpoint"),
}
CHOSEN = {
    # The agent in a rank, its page, and what it counts.
    "integration/test_injection.py": (
        "TestARank",
        "test_a_forked_child_that_becomes_a_rank_has_a_page_of_its_own[native]",
        "test_a_package_runs_and_a_bare_directory_does_not",
        "test_a_rank_that_holds_the_gil_answers_with_its_flight_recorder",
        "test_an_exception_is_recorded_while_the_programs_own_hook_still_prints_it",
        "test_an_isolated_interpreter_is_armed_where_hangwatch_is_installed[-I]",
        "test_children_of_children_are_armed_too",
        "test_data_workers_of_either_kind_never_write_a_page",
        "test_the_next_one_on_the_path_runs",
        "test_user_code_can_arm_where_sitecustomize_does_not_run",
    ),
    "integration/test_counting.py": (
        *(
            f"TestEveryCall::{name}[{recorder}]"
            for name in (
                "test_each_call_is_recorded_once_by_the_name_that_the_user_knows",
                "test_each_call_is_told_from_the_users_own_line",
                "test_nothing_of_ours_failed",
                "test_places_are_those_of_the_flight_recorder",
            )
            for recorder in ("native", "python")
        ),
        "TestWhatCppIssues::test_every_group_has_come_as_far_as_the_flight_recorder_says[native]",
        "TestWhatCppIssues::test_more_is_counted_than_python_has_issued[native]",
        "TestWhatCppIssues::test_results_are_as_without_us[native]",
    ),
    "integration/test_native_torch.py": ("test_places_signatures_and_sites_agree_on_one_rank",),
    "integration/test_reentry.py": (
        "test_what_a_handler_raises_always_reaches_the_program[native]",
    ),
    # Evidence: py-spy, the recorder, pages; another user's files; secrets.
    "integration/test_evidence.py": (),
    "integration/test_planted.py": (
        "test_the_runs_of_another_user_are_looked_at_and_left[fifo]",
        "test_the_reports_of_another_user_are_read_and_left[link]",
    ),
    "integration/test_secrets.py": (),
    "integration/test_odd_bytes.py": ("test_a_hang_is_reported[argument]",),
    # The c10d store, and the watchdogs that meet there.
    "integration/test_store.py": (
        "test_what_we_set_torch_gets_and_the_other_way_round",
        "test_a_wait_ends_when_the_last_key_is_set",
        "test_a_server_that_is_killed_is_lost",
    ),
    "integration/test_exchange.py": (
        "test_a_healthy_job_causes_no_traffic_beyond_joining",
        "test_another_takes_over_where_the_owner_of_an_incident_does_not_conclude",
        "test_stacks_travel_once_by_their_content",
        "test_the_owner_gets_what_the_other_node_knows",
        "test_the_verdict_reaches_the_other_node",
    ),
    "integration/test_hosts.py": (
        "test_a_rank_stuck_on_another_host_however_they_meet[monotonic clocks an hour apart]",
    ),
    "integration/test_lost_hosts.py": ("test_a_host_loses_its_power",),
    # The supervisor, signals, the watchdog's own life.
    "integration/test_supervisor.py": (
        "test_a_command_ended_by_a_signal_gives_128_and_its_number",
        "test_a_job_that_failed_after_an_abort_gives_75",
        "test_a_shell_sees_ctrl_z_stop_the_job_and_resumes_it",
        "test_a_signal_sent_to_the_supervisor_reaches_the_command_once",
        "test_ctrl_c_reaches_the_command_once",
        "test_standard_input_and_output_belong_to_the_command",
        "test_the_command_outlives_a_supervisor_that_was_killed",
        "test_the_exit_code_is_the_commands",
        "test_the_watchdog_is_started_again_after_it_was_killed",
    ),
    "integration/test_signals.py": (
        "test_a_handler_of_the_command_is_called_once_for_each",
        "test_the_first_process_of_a_container_passes_signals_on",
    ),
    "integration/test_surroundings.py": (
        "test_the_command_behaves_as_bare[no streams]",
        "test_where_no_process_can_be_added_hangwatch_becomes_the_command",
    ),
    "integration/test_watchdog.py": (
        "test_a_healthy_job_is_never_mentioned",
        "test_a_rank_that_left_early_is_a_proved_hang",
        "test_a_slow_rank_is_named_then_called_a_hang_then_recovers",
        "test_a_watchdog_that_is_killed_in_the_middle_says_nothing_twice",
        "test_ranks_that_are_merely_slow_are_never_ended",
    ),
    "integration/test_faults.py": (
        "test_a_corrupted_page_costs_only_the_watch_of_its_rank",
        "test_a_report_directory_that_fills_up_costs_only_the_report",
        "test_a_watchdog_that_is_killed_is_replaced[while it runs]",
        "test_torchrun_is_ended_in_order_where_everything_is_signalled_at_once",
        "test_without_py_spy_a_verdict_is_given_from_the_counters",
    ),
    # Abort and restart.
    "integration/test_abort.py": (
        "test_a_hang_that_is_ended_comes_by_every_moment",
        "test_a_job_that_has_recovered_since_the_verdict_is_not_ended[before-abort]",
    ),
    "integration/test_elastic.py": (
        "test_each_incarnation_has_its_own_incident_and_an_abort_restarts_the_job",
    ),
    # Each launcher once, a healthy job of each framework.
    "integration/test_launch_self_started.py": (
        "test_a_program_that_starts_its_own_ranks_is_watched[spawn]",
    ),
    "integration/test_plain_start.py": (
        "test_ranks_that_are_started_one_by_one_have_one_watchdog",
    ),
    "frameworks/test_launchers.py": (
        "test_a_rank_that_stalls_is_named[accelerate]",
        "test_a_healthy_run_is_left_alone[accelerate-yaml]",
        "test_a_healthy_run_is_left_alone[deepspeed]",
    ),
    "frameworks/test_frameworks.py": (f"{OF_A_FRAMEWORK}[lightning_healthy]",),
    "frameworks/test_launch_templates.py": ("test_the_batch_script_has_each_node_watched",),
    # What hangs, and what is told of it.
    "zoo/test_zoo.py": tuple(f"{test}[{case}]" for test, cases in ZOO.items() for case in cases),
    "integration/test_stragglers.py": (
        "test_the_slow_ranks_are_named_with_what_they_cost[one_late]",
        "test_the_slow_ranks_of_several_hosts_are_named_on_all_of_them[two_of_a_node]",
    ),
    "integration/test_costly_mistakes.py": ("test_several_mistakes_are_told_once_at_the_end",),
    "integration/test_analyze.py": (
        "test_the_rank_that_broke_a_real_job_is_named_from_its_dumps[stall-json]",
    ),
    # What people see and use.
    "integration/test_page_browser.py": (
        "test_a_rank_is_found_wherever_it_is",
        "test_a_real_incident_is_shown_without_errors_or_requests[light]",
        "test_hostile_text_stays_text",
        "test_ten_thousand_ranks_open_at_once",
    ),
    "integration/test_metrics.py": (
        "test_a_port_that_is_taken_costs_nothing_but_the_port",
        "test_prometheus_finds_the_job_and_sees_it_stall_and_go_on",
    ),
    "integration/test_doctor.py": ("test_two_ranks_of_one_node_meet_and_are_timed",),
    "integration/test_inspect.py": ("test_a_stuck_data_worker_is_shown_with_its_stack",),
    "integration/test_top.py": ("test_a_hang_is_shown_with_culprit_calls_and_lines",),
    "integration/test_hooks.py": ("test_slack_gets_one_json_message",),
    "integration/test_docs.py": (
        "test_each_command_of_the_readme_works",
        "test_every_link_to_a_file_leads_to_one",
        "test_every_option_and_every_kind_is_in_the_docs",
        "test_inspect_shows_the_ranks_of_a_job_that_runs",
        "test_the_commands_were_found",
        "test_the_makefile_knows_the_target",
        "test_top_follows_a_job_to_its_end",
    ),
    # GPUs, by fake driver libraries.
    "gpu_fake/test_gpu_job.py": ("test_nvml_that_blocks_for_ever_costs_the_gpus_alone",),
    "gpu_fake/test_gpu_reader.py": (),
}
"""File to its tests, by class, by name, or by name and parameters; all of it where empty."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark them. Raises UsageError where one of a file is not there any more."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for item in items:
        file = str(item.path.relative_to(TESTS)) if item.path.is_relative_to(TESTS) else ""
        if file in CHOSEN:
            _, *parts = item.nodeid.split("::")
            names = {*parts, "::".join(parts), parts[-1].partition("[")[0]}
            found[file] |= names
            if not CHOSEN[file] or names & set(CHOSEN[file]):
                item.add_marker("chosen")
    if "chosen" in config.option.markexpr:
        missing = [file for file in CHOSEN if not (TESTS / file).exists()]
        for file in filter(_is_collected_by(config), CHOSEN):
            if not found[file]:
                missing.append(file)  # such as where all of it is skipped
            missing += [f"{file}::{name}" for name in set(CHOSEN[file]) - found[file]]
        if missing:
            raise pytest.UsageError(f"tests/suite/chosen.py names what is not there: {missing}")


def _is_collected_by(config: pytest.Config) -> Callable[[str], bool]:
    """Return a function that tells if a file is among those that this run was asked for."""
    asked = [Path(argument).resolve() for argument in config.args if "::" not in argument]
    return lambda file: any((TESTS / file).is_relative_to(path) for path in asked)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail where continuous integration lacks what a chosen test needs."""
    report = yield
    if report.skipped and "CI" in os.environ and "chosen" in item.config.option.markexpr:
        report.outcome, report.longrepr = "failed", f"it has to run here: {report.longrepr}"
    return report
