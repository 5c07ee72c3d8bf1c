#!/usr/bin/env bash
# Starts or continues a training in the pod that leads, and shows what it prints: train.sh RUN [OPTION OF nbrl train]…
# The training does not end with this command. The context and the namespace are those of kubectl.
set -euo pipefail

die() { printf 'train: %s\n' "$*" >&2; exit 1; }

[ $# -gt 0 ] || die "give the run's name"
run=$1
shift
case "$run" in -* | */* | "") die "'$run' is no name of a run; give one of letters, digits, dots and dashes" ;; esac

cluster=${NBRL_CLUSTER:-nbrl}
pod=$(kubectl get pods --selector "ray.io/cluster=$cluster,ray.io/node-type=head" --field-selector status.phase=Running --output name)
[ -n "$pod" ] || die "no pod leads the cluster $cluster; see kubectl get raycluster,pods"

# A session of its own, so that the training outlives the connection.
# shellcheck disable=SC2016  # the pod's shell expands it
begin='setsid nbrl train /etc/nbrl/recipe.yaml --run "$0" "$@" </dev/null >>"$HOME/$0.log" 2>&1 &'
kubectl exec "$pod" --container ray-head -- bash -c "$begin" "$run" "$@"
echo "$run trains in $pod. Ctrl-C ends this output alone; nbrl stop $run --root ROOT ends the training, from anywhere."
exec kubectl exec "$pod" --container ray-head -- tail --lines=+1 -F "/home/nbrl/$run.log"
