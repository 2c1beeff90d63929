"""What people use on their own models: runs that can be watched, stopped, resumed and compared, the
form, the report.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "app.arena": "add_to_table arena_headline compare_rule",
    "app.arena_charts": "arena_chart chart_kind save_chart table_markdown table_text",
    "app.choices": "QLORA experiment plan",
    "app.compare": "MIN_SEEDS compare_settings comparison_chart run_tables",
    "app.diagnosis": "diagnose",
    "app.form": "RunForm",
    "app.log_form": "LogForm Tabs",
    "app.memory": (
        "QWEN_1_5B QWEN_7B WORKLOAD at_peak forecast_run memory_forecast parameter_counts peak_mib"
    ),
    "app.monitor": "RunMonitor",
    "app.record_callback": "TokenRecord",
    "app.report": "report_findings report_text report_warnings",
    "app.runs": "Run latest_run load_run start_run",
    "app.sweeps": "compare_runs load_sweep sweep",
    "app.worker": "build_trainer",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
