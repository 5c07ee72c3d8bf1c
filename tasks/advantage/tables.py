"""The two tables of the advantage node, one row per step: finished advantages, or the learner's rewards to compute them.

In the table of rewards a trajectory without a step has one row with only its name, because it counts in its group.
"""

import pyarrow as pa

ADVANTAGES_SCHEMA = pa.schema([("trajectory", pa.string()), ("step", pa.int32()), ("advantage", pa.float64())])
REWARDS_SCHEMA = pa.schema([("trajectory", pa.string()), ("step", pa.int32()), ("reward", pa.float64())])
