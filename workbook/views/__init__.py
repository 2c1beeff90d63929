"""Charts and widgets: pure charts f(DataFrame) -> alt.Chart, and thin shells that make them live. Nothing trains."""

from workbook.views.charts import learning_curve, memory_forecast_chart, reward_before_after
from workbook.views.gradients import compute_gradients_meet, explore_gradients_meet, gradients_meet_chart
from workbook.views.live import LiveChart, refresh, show
from workbook.views.panel import TrainingPanel
from workbook.views.renderer import enable_charts
from workbook.views.tokens import token_strip

__all__ = [
    "LiveChart",
    "TrainingPanel",
    "compute_gradients_meet",
    "enable_charts",
    "explore_gradients_meet",
    "gradients_meet_chart",
    "learning_curve",
    "memory_forecast_chart",
    "refresh",
    "reward_before_after",
    "show",
    "token_strip",
]
