"""The two tables of the advantage node, one row a step: finished advantages, or the rewards from which the learner makes them.

In the table of rewards a trajectory without a step has one row of its name alone: its group is compared with it.
"""

import pyarrow as pa

ADVANTAGES_SCHEMA = pa.schema([("trajectory", pa.string()), ("step", pa.int32()), ("advantage", pa.float64())])
REWARDS_SCHEMA = pa.schema([("trajectory", pa.string()), ("step", pa.int32()), ("reward", pa.float64())])
