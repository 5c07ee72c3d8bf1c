#!/usr/bin/env bash
#SBATCH --job-name=nbrl
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=1
#SBATCH --exclusive
#SBATCH --no-kill
#SBATCH --signal=B:TERM@120
#
# Trains on the nodes of a job: sbatch infra/deployment/slurm.sh RECIPE [OPTION OF nbrl train]…
#
# Submit it from the folder of nbrl, which all nodes see at the same place, as they see the home folder. The first node leads.
# --no-kill: a training goes on without a node that failed. --signal: two minutes before the time is up the training is stopped;
# submitted again with the same --run, it goes on.
#
#   NBRL_RESOURCES     what each node offers, as JSON, with a ; between nodes; the last one holds for all further nodes
#   NBRL_HEAD_ADDRESS  address of the first node, where it has several: by default the first that `hostname -I` prints there
#   NBRL_PORT          port of Ray, 6379 by default
#   NBRL_START_S       seconds in which all nodes must have joined, 300 by default
#   NBRL_LOGS          folder of the logs of Ray, by default nbrl-JOB in the current folder
set -euo pipefail

die() { printf 'slurm: %s\n' "$*" >&2; exit 1; }

[ $# -gt 0 ] || die "give a recipe: sbatch infra/deployment/slurm.sh RECIPE"
job=${SLURM_JOB_ID:?runs in a job of SLURM: use sbatch}
default='{"rank": 1};{"engine": 1};{"sandbox": 2}'
resources=${NBRL_RESOURCES:-$default}
port=${NBRL_PORT:-6379}
patience=${NBRL_START_S:-300}
logs=${NBRL_LOGS:-nbrl-$job}
temporary=/tmp/nbrl-$job
cpus=${SLURM_CPUS_PER_TASK:-1}
if [ -d .venv/bin ]; then export PATH="$PWD/.venv/bin:$PATH"; fi

mapfile -t nodes < <(scontrol show hostnames "${SLURM_JOB_NODELIST:?is not set: use sbatch}")
IFS=';' read -ra offers <<<"$resources"
[ "${#offers[@]}" -le "${#nodes[@]}" ] ||
  die "NBRL_RESOURCES names ${#offers[@]} nodes and the job has ${#nodes[@]}; ask for more by --nodes, or name fewer"

# Runs a command on a node, beside what else runs there. A step does not take the number of CPUs from the job by itself.
step=(srun --overlap --nodes=1 --ntasks=1 --cpus-per-task="$cpus")

children=()
training=
interrupted=
# shellcheck disable=SC2317  # a trap calls it
clean_up() {
  trap '' TERM INT
  local child node
  for child in "${children[@]}"; do kill -TERM "$child" 2>/dev/null || true; done
  for child in "${children[@]}"; do wait "$child" 2>/dev/null || true; done
  for node in "${nodes[@]}"; do "${step[@]}" --nodelist="$node" rm -rf "$temporary" >/dev/null 2>&1 </dev/null || true; done
  rm -rf "$secret"
}

# A file, because the environment of a process can be read by more people than a file of its owner.
secret=$(mktemp -d "$HOME/.nbrl-$job-XXXXXX")
trap clean_up EXIT
trap 'interrupted=1; if [ -n "$training" ]; then kill -TERM "$training" 2>/dev/null || true; else exit 130; fi' TERM INT
(umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$secret/token")
unset RAY_AUTH_TOKEN
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$secret/token" RAY_USAGE_STATS_ENABLED=0
# A node that falls silent is missed after three questions, one every 2 s, of which each waits 5 s for its answer.
export RAY_health_check_period_ms=2000 RAY_health_check_timeout_ms=5000 RAY_health_check_failure_threshold=3
mkdir -p "$logs"

address=${NBRL_HEAD_ADDRESS:-$("${step[@]}" --nodelist="${nodes[0]}" hostname -I </dev/null | tr ' ' '\n' | grep -m1 -F .)} ||
  die "${nodes[0]} says no address of its own; set NBRL_HEAD_ADDRESS"

# wait_for NUMBER: return when the node's Ray has started; end the job where it never will.
wait_for() {
  local node=${nodes[$1]} log="$logs/ray-${nodes[$1]}.log"
  until grep -qs "Ray runtime started" "$log"; do
    kill -0 "${children[$1]}" 2>/dev/null || die "Ray ended on $node: $(tail -n1 "$log"); its log is $log"
    [ "$SECONDS" -lt "$patience" ] || die "Ray did not start on $node within $patience s; its log is $log"
    sleep 1
  done
}

last=$((${#offers[@]} - 1))
for number in "${!nodes[@]}"; do
  where=(--address="$address:$port")
  if [ "$number" = 0 ]; then
    # A folder of its own for each job: /tmp/ray may be another user's. The other nodes are told of it.
    where=(--head --port="$port" --node-ip-address="$address" --temp-dir="$temporary" --include-dashboard=false)
  fi
  offer=${offers[$((number < last ? number : last))]}
  "${step[@]}" --nodelist="${nodes[$number]}" ray start "${where[@]}" --block --disable-usage-stats --num-cpus="$cpus" --resources="$offer" \
    >"$logs/ray-${nodes[$number]}.log" 2>&1 </dev/null &
  children+=($!)
  if [ "$number" = 0 ]; then wait_for 0; fi  # the others join it
done
for number in "${!nodes[@]}"; do wait_for "$number"; done

# The address is another one in each job, so that it cannot stand in the recipe.
"${step[@]}" --nodelist="${nodes[0]}" nbrl train "$@" --set "ray.address=$address:$port" </dev/null &
training=$!
# A signal ends a wait: the training then ends by itself, and its status is that of the job.
while :; do
  interrupted=
  status=0
  wait "$training" || status=$?
  [ -n "$interrupted" ] || break
done
exit "$status"
