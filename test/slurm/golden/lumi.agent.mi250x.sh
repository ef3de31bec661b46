#!/bin/bash
# hpcserve 0.1.0: node agents, one on each node of this job
# deployment: chat
# launch:     0123456789abcdef
# site:       lumi, node kind mi250x

#SBATCH --job-name=hpcserve-chat-agent
#SBATCH --chdir=/home/ada/.hpcserve/lumi/deployments/chat/launches/0123456789abcdef
#SBATCH --output=/home/ada/.hpcserve/lumi/deployments/chat/launches/0123456789abcdef/job.log
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=56
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --partition=standard-g
#SBATCH --signal=B:USR1@300
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
export XDG_CACHE_HOME=/scratch/project_465000001/ada/hpcserve/cache
export HF_HOME=/scratch/project_465000001/ada/hpcserve/cache/huggingface
export TRITON_CACHE_DIR=/scratch/project_465000001/ada/hpcserve/cache/triton
export TORCHINDUCTOR_CACHE_DIR=/scratch/project_465000001/ada/hpcserve/cache/torchinductor
export VLLM_CACHE_ROOT=/scratch/project_465000001/ada/hpcserve/cache/vllm
export FLASHINFER_WORKSPACE_BASE=/scratch/project_465000001/ada/hpcserve/cache/flashinfer
export CUDA_CACHE_PATH=/scratch/project_465000001/ada/hpcserve/cache/cuda
export NUMBA_CACHE_DIR=/scratch/project_465000001/ada/hpcserve/cache/numba
export APPTAINER_CACHEDIR=/scratch/project_465000001/ada/hpcserve/cache/apptainer
mkdir -p -- /scratch/project_465000001/ada/hpcserve/cache || hpcserve_fail 'cannot make the folder /scratch/project_465000001/ada/hpcserve/cache'

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
  --cpus-per-task=56 \
  --mpi=none \
  --kill-on-bad-exit=1 \
  --wait=0 \
  singularity \
  exec \
  --bind=/home/ada/hpcserve:/home/ada/hpcserve \
  --bind=/home/ada/.hpcserve:/home/ada/.hpcserve \
  --bind=/scratch/project_465000001/ada/hpcserve/cache:/scratch/project_465000001/ada/hpcserve/cache \
  --rocm \
  /home/ada/hpcserve-rocm.sif \
  /home/ada/hpcserve/bin/node \
  /home/ada/hpcserve/dist/agent/main.js \
  --launch \
  /home/ada/.hpcserve/lumi/deployments/chat/launches/0123456789abcdef/launch.json &
hpcserve_step=$!

# A signal ends "wait" early, before srun has ended: wait again until it was not one.
while :; do
  hpcserve_signal=''
  hpcserve_status=0
  wait "$hpcserve_step" || hpcserve_status=$?
  if [ -z "$hpcserve_signal" ]; then break; fi
done

exit "$hpcserve_status"
