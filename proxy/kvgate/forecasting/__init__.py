"""How long answers get: learned while they run, used to price those that start and to refresh those that run.

`forecaster` is what admission talks to, one for each pool. `running` has a request from its grant to its end,
`learning` what it teaches, `rates` how fast engines write, `pace` when to look at it again, `revoking` whom to send
back to the queue, `watching` what is told to the metrics. `keeping` lets processes learn together and restarts
remember, by `shared` in Redis or by `stored` in a file. The arithmetic is in `kvgate_policies.forecast*`.
"""

from kvgate.forecasting.forecaster import Forecaster
from kvgate.forecasting.running import Held, Running
from kvgate.forecasting.watching import ForecastWatch, NoForecastWatch

__all__ = ["ForecastWatch", "Forecaster", "Held", "NoForecastWatch", "Running"]
