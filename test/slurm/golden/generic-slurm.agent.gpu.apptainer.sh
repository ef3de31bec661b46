#!/bin/bash
# hpcserve 0.1.0: node agents, one on each node of this job
# deployment: chat
# launch:     0123456789abcdef
# site:       generic-slurm, node kind gpu

#SBATCH --job-name=hpcserve-chat-agent
#SBATCH --chdir=/home/ada/.hpcserve/generic-slurm/deployments/chat/launches/0123456789abcdef
#SBATCH --output=/home/ada/.hpcserve/generic-slurm/deployments/chat/launches/0123456789abcdef/job.log
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --mem=228881M
#SBATCH --gres=gpu:4
#SBATCH --time=04:00:00
#SBATCH --partition=gpu
#SBATCH --signal=B:USR1@120
#SBATCH --no-requeue
#SBATCH --comment=hpcserve:0123456789abcdef

# shellcheck disable=SC2016 # single quotes are meant: values are taken literally
set -euo pipefail
umask 077

hpcserve_fail() {
  printf 'hpcserve: %s\n' "$1" >&2
  exit 78
}

# Environment of everything below.
export XDG_CACHE_HOME=/scratch/ada/cache
export HF_HOME=/scratch/ada/cache/huggingface
export TRITON_CACHE_DIR=/scratch/ada/cache/triton
export TORCHINDUCTOR_CACHE_DIR=/scratch/ada/cache/torchinductor
export VLLM_CACHE_ROOT=/scratch/ada/cache/vllm
export FLASHINFER_WORKSPACE_BASE=/scratch/ada/cache/flashinfer
export CUDA_CACHE_PATH=/scratch/ada/cache/cuda
export NUMBA_CACHE_DIR=/scratch/ada/cache/numba
export APPTAINER_CACHEDIR=/scratch/ada/cache/apptainer
mkdir -p -- /scratch/ada/cache || hpcserve_fail 'cannot make the folder /scratch/ada/cache'

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
  --nodes=2 \
  --ntasks=2 \
  --ntasks-per-node=1 \
  --cpus-per-task=32 \
  --mpi=none \
  --kill-on-bad-exit=1 \
  --wait=0 \
  apptainer \
  exec \
  --bind=/opt/cray:/opt/cray:ro \
  --bind=/home/ada/hpcserve:/home/ada/hpcserve \
  --bind=/home/ada/.hpcserve:/home/ada/.hpcserve \
  --bind=/scratch/ada/cache:/scratch/ada/cache \
  --nv \
  /images/vllm.sif \
  /home/ada/hpcserve/bin/node \
  /home/ada/hpcserve/dist/agent/main.js \
  --launch \
  /home/ada/.hpcserve/generic-slurm/deployments/chat/launches/0123456789abcdef/launch.json &
hpcserve_step=$!

# A signal ends "wait" early, before srun has ended: wait again until it was not one.
while :; do
  hpcserve_signal=''
  hpcserve_status=0
  wait "$hpcserve_step" || hpcserve_status=$?
  if [ -z "$hpcserve_signal" ]; then break; fi
done

exit "$hpcserve_status"
