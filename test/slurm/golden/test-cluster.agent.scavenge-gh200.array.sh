#!/bin/bash
# hpcserve 0.1.0: node agents, one on each node of this job
# deployment: chat
# job array:  0123456789abcdef
# site:       test-cluster, node kind scavenge-gh200

#SBATCH --job-name=hpcserve-chat-agent
#SBATCH --chdir=/home/ada/.hpcserve/test-cluster/deployments/chat/launches/0123456789abcdef
#SBATCH --output=/home/ada/.hpcserve/test-cluster/deployments/chat/launches/0123456789abcdef/task-%a/job.log
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --array=0-3
#SBATCH --cpus-per-task=8
#SBATCH --mem=57220M
#SBATCH --gres=gpu:gh200:4
#SBATCH --time=00:30:00
#SBATCH --partition=scavenge
#SBATCH --constraint=gh200
#SBATCH --signal=B:USR1@30
#SBATCH --requeue
#SBATCH --comment=hpcserve:0123456789abcdef

# shellcheck disable=SC2016 # single quotes are meant: values are taken literally
set -euo pipefail
umask 077

# The launch that this task of the array is. Slurm is spoken to by the task's name: the number in SLURM_JOB_ID means
# the whole array in the last task of it.
hpcserve_launch=/home/ada/.hpcserve/test-cluster/deployments/chat/launches/0123456789abcdef/task-"$SLURM_ARRAY_TASK_ID"
cd -- "$hpcserve_launch"

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
  scancel --quiet --signal=TERM "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" 2>/dev/null || true
}
trap hpcserve_warn USR1
trap hpcserve_stop TERM

# One task on each node.
srun \
  --nodes=1 \
  --ntasks=1 \
  --ntasks-per-node=1 \
  --cpus-per-task=8 \
  --mpi=none \
  --kill-on-bad-exit=0 \
  --wait=0 \
  /home/ada/hpcserve/bin/node \
  /home/ada/hpcserve/dist/agent/main.js \
  --launch \
  "$hpcserve_launch"/launch.json &
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
  if hpcserve_job=$(scontrol --oneliner show job "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"); then break; fi
  sleep "$hpcserve_pause"
done
case $hpcserve_job in
  *JobState=RUNNING*PreemptTime=[0-9]*)
    if [ "${SLURM_RESTART_COUNT:-0}" -lt 5 ]; then
      echo 'hpcserve: preempted; back into the queue' >&2
      scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" || true
    else
      echo 'hpcserve: preempted too often; another job takes its place' >&2
      # Newer versions of Slurm put it back by themselves, also where it ended within the grace time.
      scontrol update JobId="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" Requeue=0 || true
    fi
    ;;
esac

exit "$hpcserve_status"
