"""Charts and widgets: pure functions of DataFrames, and thin shells that make them live."""

from workbook.places import lazy_names

# module: what it offers
_NAMES = {
    "views.batches": "draw_batch noise_share_chart",
    "views.chapter_map": "book_path meeting_paths_chart",
    "views.charts": (
        "checked curve_chart describe_parts fold intervals_chart parts_table reward_before_after"
        " signal_noise_chart"
    ),
    "views.explorer": "Explorer browse frozen",
    "views.heatmap": "TokenHeatmap",
    "views.live": "LiveChart display_widget",
    "views.live_study": "LiveStudy live_curve live_tables",
    "views.measured": "measured_table",
    "views.memory": "memory_bars",
    "views.predicting": "calibration predict reveal",
    "views.schematics": (
        "draw_continuations draw_cuts draw_grpo_step draw_merging_paths draw_paired_runs draw_pairs"
        " draw_qlora draw_reference_pull draw_reuse draw_routes draw_shared_weights draw_step_parts"
    ),
    "views.style": "enable_charts",
    "views.tokens": "explained_chart token_strip",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
