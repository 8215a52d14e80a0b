#!/bin/sh
# Writes a verdict into the comment of the Slurm job, where squeue and sacct show it
# (squeue --Format=JobID,Comment:200); with HANGWATCH_REQUEUE=1 it also puts a job that
# hangs back into the queue.
#
#   hangwatch --hook docs/hooks/slurm.sh srun ... train.py
#
# In a job that is to be requeued: #SBATCH --requeue, and a training script that goes on
# from its last checkpoint. Do not use --on-hang abort with it: Slurm ends the ranks.
set -eu

: "${SLURM_JOB_ID:?this is for jobs of Slurm}"

# One argument, whatever is in the headline; Slurm cuts long comments.
scontrol update "jobid=$SLURM_JOB_ID" "comment=hangwatch: $HANGWATCH_STATE: $HANGWATCH_HEADLINE"

if [ "${HANGWATCH_REQUEUE:-0}" = 1 ] && [ "$HANGWATCH_STATE" = hang ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
