#!/bin/bash
# hpcserve 0.1.0: node agents, one on each node of this job
# deployment: chat
# launch:     0123456789abcdef
# site:       perlmutter, node kind a100-preempt

#SBATCH --job-name=hpcserve-chat-agent
#SBATCH --chdir=/home/ada/.hpcserve/perlmutter/deployments/chat/launches/0123456789abcdef
#SBATCH --output=/home/ada/.hpcserve/perlmutter/deployments/chat/launches/0123456789abcdef/job.log
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=128
#SBATCH --gpus-per-node=4
#SBATCH --time=12:00:00
#SBATCH --qos=preempt
#SBATCH --constraint=gpu
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --comment=hpcserve:0123456789abcdef

# shellcheck disable=SC2016 # single quotes are meant: values are taken literally
set -euo pipefail
umask 077

hpcserve_fail() {
  printf 'hpcserve: %s\n' "$1" >&2
  exit 78
}

# Environment of everything below.
export XDG_CACHE_HOME=/pscratch/sd/a/ada/hpcserve/cache
export HF_HOME=/pscratch/sd/a/ada/hpcserve/cache/huggingface
export TRITON_CACHE_DIR=/pscratch/sd/a/ada/hpcserve/cache/triton
export TORCHINDUCTOR_CACHE_DIR=/pscratch/sd/a/ada/hpcserve/cache/torchinductor
export VLLM_CACHE_ROOT=/pscratch/sd/a/ada/hpcserve/cache/vllm
export FLASHINFER_WORKSPACE_BASE=/pscratch/sd/a/ada/hpcserve/cache/flashinfer
export CUDA_CACHE_PATH=/pscratch/sd/a/ada/hpcserve/cache/cuda
export NUMBA_CACHE_DIR=/pscratch/sd/a/ada/hpcserve/cache/numba
export APPTAINER_CACHEDIR=/pscratch/sd/a/ada/hpcserve/cache/apptainer
mkdir -p -- /pscratch/sd/a/ada/hpcserve/cache || hpcserve_fail 'cannot make the folder /pscratch/sd/a/ada/hpcserve/cache'

# Signals. USR1 is Slurm's warning before the time limit: srun hands it to every task. TERM must not go to
# srun, which would kill its tasks at once; Slurm sends TERM to the steps itself when a job is cancelled,
# preempted or out of time, and here it is asked to do so when only this script got it.
hpcserve_step=''
hpcserve_signal=''
# shellcheck disable=SC2317 # called by trap
hpcserve_warn() {
  hpcserve_signal=USR1
  if [ -n "$hpcserve_step" ]; then kill -USR1 "$hpcserve_step" 2>/dev/null || true; fi
}
# shellcheck disable=SC2317 # called by trap
hpcserve_stop() {
  hpcserve_signal=TERM
  if [ -z "$hpcserve_step" ]; then exit 143; fi
  scancel --quiet --signal=TERM "$SLURM_JOB_ID" 2>/dev/null || true
}
trap hpcserve_warn USR1
trap hpcserve_stop TERM

# One task on each node.
srun \
  --nodes=1 \
  --ntasks=1 \
  --ntasks-per-node=1 \
  --cpus-per-task=128 \
  --mpi=none \
  --kill-on-bad-exit=0 \
  --wait=0 \
  /home/ada/hpcserve/bin/node \
  /home/ada/hpcserve/dist/agent/main.js \
  --launch \
  /home/ada/.hpcserve/perlmutter/deployments/chat/launches/0123456789abcdef/launch.json &
hpcserve_step=$!

# A signal ends "wait" early, before srun has ended: wait again until it was not one.
while :; do
  hpcserve_signal=''
  hpcserve_status=0
  wait "$hpcserve_step" || hpcserve_status=$?
  if [ -z "$hpcserve_signal" ]; then break; fi
done

# A preempted job whose tasks end within the grace time counts as completed and would not come back: ask for
# it. A cancelled job is no longer RUNNING here, and one that ended by itself has no PreemptTime. Slurm may
# still send its warning, to children too: from here on it is ignored.
trap '' USR1 TERM
hpcserve_job=''
for hpcserve_pause in 1 2 4 0; do
  if hpcserve_job=$(scontrol --oneliner show job "$SLURM_JOB_ID"); then break; fi
  sleep "$hpcserve_pause"
done
case $hpcserve_job in
  *JobState=RUNNING*PreemptTime=[0-9]*)
    if [ "${SLURM_RESTART_COUNT:-0}" -lt 5 ]; then
      echo 'hpcserve: preempted; back into the queue' >&2
      scontrol requeue "$SLURM_JOB_ID" || true
    else
      echo 'hpcserve: preempted too often; another job takes its place' >&2
      # Newer versions of Slurm put it back by themselves, also where it ended within the grace time.
      scontrol update JobId="$SLURM_JOB_ID" Requeue=0 || true
    fi
    ;;
esac

exit "$hpcserve_status"
