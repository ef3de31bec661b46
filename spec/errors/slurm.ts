import { defineErrors } from './define.ts';

/** Errors of talking to Slurm and of writing scripts for it. */
export const slurmErrors = defineErrors({
  E_SLURM_COMMAND_MISSING: {
    cause: 'A command of Slurm (sbatch, squeue, …) is not on this machine or not on PATH.',
    fix: 'Run on a login node of the cluster, set slurm.bin_dir in the site config, or use the local site.',
    http_status: 503,
    exit_code: 12,
  },
  E_FIRECREST_ACCESS: {
    cause:
      'FirecREST or its OIDC provider does not let this client in, or the client secret is not to be had.',
    fix: 'compare client_id, secret and token_url of slurm.firecrest with what the site gave you; the file of the secret must be 0600',
    http_status: 401,
    exit_code: 7,
  },
  E_FIRECREST_FILE: {
    cause: 'FirecREST could not read or write a file on the cluster.',
    fix: 'see its reason: the path must be on a filesystem of that system that you may use',
    http_status: 502,
    exit_code: 7,
  },
  E_SLURM_CLUSTER: {
    cause: 'slurmdbd knows no cluster of the name given, or its controller has never been up.',
    fix: 'set slurm.cluster of the site config to one of `sacctmgr show cluster`, or leave it out',
    http_status: 400,
    exit_code: 3,
  },
  E_SLURM_UNREACHABLE: {
    cause: 'Slurm’s controller or authentication service did not answer.',
    fix: 'Wait and try again; `hpcserve doctor` shows what can be reached.',
    http_status: 503,
    exit_code: 7,
  },
  E_SLURM_ANSWER: {
    cause: 'A command of Slurm printed something this version of hpcserve cannot read.',
    fix: 'Report the output together with the version of Slurm.',
    http_status: 502,
    exit_code: 7,
  },
  E_SLURM_JOB_UNKNOWN: {
    cause: 'Slurm does not know a job of this number: it never was, or it ended too long ago.',
    fix: 'Look up the number with `hpcserve status`.',
    http_status: 404,
    exit_code: 9,
  },
  E_SLURM_ACCOUNT: {
    cause: 'Slurm refused the account, or the account in this partition.',
    fix: 'Set slurm.defaults.account to one of your accounts; `sacctmgr show associations user=$USER` lists them.',
    http_status: 400,
    exit_code: 6,
  },
  E_SLURM_PARTITION: {
    cause: 'Slurm refused the partition: it does not exist, is down, or does not take such jobs.',
    fix: 'Choose a partition that `sinfo` lists.',
    http_status: 400,
    exit_code: 6,
  },
  E_SLURM_QOS: {
    cause: 'Slurm refused the quality of service.',
    fix: 'Choose a QoS that your account may use; `sacctmgr show associations user=$USER format=account,qos` lists them.',
    http_status: 400,
    exit_code: 6,
  },
  E_SLURM_RESERVATION: {
    cause: 'Slurm refused the reservation: it does not exist, is over, or is not for you.',
    fix: 'Choose a reservation that `scontrol show reservation` lists, or none.',
    http_status: 400,
    exit_code: 6,
  },
  E_SLURM_TIME_LIMIT: {
    cause: 'The time limit is missing, longer than allowed, or not written as Slurm wants it.',
    fix: 'Ask for a shorter time_limit, or another partition or QoS.',
    http_status: 400,
    exit_code: 6,
  },
  E_SLURM_FEATURE: {
    cause: 'No node has a feature that --constraint asks for.',
    fix: 'Choose features that `sinfo -o "%f %N"` lists.',
    http_status: 400,
    exit_code: 6,
  },
  E_SLURM_GRES: {
    cause: 'Slurm does not know the GPU or other generic resource in this form.',
    fix: 'Compare gres_type and slurm.gpu_request with `sinfo -o "%G %N"`.',
    http_status: 400,
    exit_code: 6,
  },
  E_SLURM_NODE_NAME: {
    cause: 'A node that nodelist or exclude names does not exist.',
    fix: 'Choose nodes that `sinfo -N` lists.',
    http_status: 400,
    exit_code: 6,
  },
  E_SLURM_NODE_CONFIG: {
    cause: 'No node of the partition is large enough or of the right kind for what one node is asked for.',
    fix: 'Ask for fewer GPUs, CPUs or less memory per node, or name a partition whose nodes have them.',
    http_status: 400,
    exit_code: 6,
  },
  E_SLURM_ARRAY: {
    cause: 'Slurm does not take job arrays, or not as large a one.',
    fix: 'Nothing has to be done: the jobs are submitted one by one. `slurm.array: never` in the site config leaves out the attempt.',
    http_status: 400,
    exit_code: 6,
  },
  E_SLURM_LIMIT: {
    cause: 'A limit on jobs or resources of you, your account, the QoS or the partition is reached.',
    fix: 'Wait until jobs of yours have ended, ask for less, or use another account or QoS.',
    http_status: 429,
    exit_code: 6,
  },
  E_SLURM_NOT_ALLOWED: {
    cause: 'You may not use what was asked for, or not touch this job.',
    fix: 'Choose a partition or account that is open to you, or ask the site’s support for access.',
    http_status: 403,
    exit_code: 6,
  },
  E_SLURM_OPTION: {
    cause: 'sbatch does not know an option, or not this value of it.',
    fix: 'Correct the option; `man sbatch` on the login node lists those of the site’s version.',
    http_status: 400,
    exit_code: 6,
  },
  E_SLURM_REFUSED: {
    cause: 'Slurm refused the job for a reason of its own.',
    fix: 'Follow Slurm’s own words; the site’s documentation or support knows local rules.',
    http_status: 400,
    exit_code: 6,
  },
  E_SLURM_SCRIPT: {
    cause: 'A value cannot be written into a job script.',
    fix: 'Use a value without line breaks and control characters.',
    http_status: 400,
    exit_code: 3,
  },
  E_SLURM_SECRET: {
    cause: 'A secret would be written into a job script, where others may read it.',
    fix: 'Put it into a file that only you can read (mode 0600) and name that file in environment_files.',
    http_status: 400,
    exit_code: 3,
  },
  E_SSH_TARGET: {
    cause: 'A host in slurm.ssh of the site config is not written as one.',
    fix: 'Write it as [user@]host[:port].',
    http_status: 400,
    exit_code: 3,
  },
  E_SSH_CONNECT: {
    cause: 'The login node, or a host on the way to it, cannot be reached, or the connection broke.',
    fix: 'Try `ssh` by hand with the same host and jump hosts; `hpcserve` goes on where it stopped when run again.',
    http_status: 503,
    exit_code: 7,
  },
  E_SSH_HOST_KEY: {
    cause: 'The key that a host showed is not the one that is known of it, or none is known.',
    fix: 'Compare the fingerprint with what your site publishes, then connect once with `ssh`, which writes it down.',
    http_status: 503,
    exit_code: 7,
  },
  E_SSH_AUTHENTICATION: {
    cause: 'A host accepted none of the keys, passwords or answers it was given.',
    fix: 'Load your key into an ssh agent (`ssh-add`), set slurm.ssh.identity_file, or run in a terminal that can ask you.',
    http_status: 401,
    exit_code: 7,
  },
  E_SSH_FILE: {
    cause: 'A file did not arrive whole on the login node.',
    fix: 'Look at the space and rights there, and run the command again: what has arrived is not sent twice.',
    http_status: 500,
    exit_code: 12,
  },
});
