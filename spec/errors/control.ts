import { defineErrors } from './define.ts';

/** What can go wrong between asking for a deployment and its jobs: planning, state on disk, gateway. */
export const controlErrors = defineErrors({
  E_PLAN_INFEASIBLE: {
    cause: 'No node kind of the site satisfies what the deployment asks for.',
    fix: 'see which constraint rejected each node kind with `hpcserve plan FILE --explain`, and relax one',
    http_status: 409,
    exit_code: 5,
  },
  E_PLAN_STALE: {
    cause: 'Something the plan was made from has changed since: model.yaml, the model files or the site.',
    fix: 'make the plan again with `hpcserve plan FILE --out PLAN`, look at it, and deploy that one',
    http_status: 409,
    exit_code: 10,
  },
  E_PLAN_FILE: {
    cause: 'A file given as a plan is not one, or was written by another version.',
    fix: 'write it with `hpcserve plan FILE --out PLAN`',
    http_status: 400,
    exit_code: 3,
  },
  E_SITES_DIFFER: {
    cause: 'Several sites that are to share one plan say different things of what must be the same for all.',
    fix: 'bring the same model files to all sites, and run the same version of hpcserve there',
    http_status: 409,
    exit_code: 5,
  },
  E_SITES_APART: {
    cause:
      'The sites that are to share one deployment are not one mesh, so that no URL would answer for all of them.',
    fix: 'give them the same network.key and let one name the gateway of the other in mesh.bootstrap; see docs/several-sites.md',
    http_status: 409,
    exit_code: 7,
  },
  E_SITES_PARTLY: {
    cause: 'A command over several sites did what it should on some of them, and not on all.',
    fix: 'correct what is in the way on the site named and run the same command again: it goes on where this one stopped',
    http_status: 502,
    exit_code: 8,
  },
  E_DEPLOYMENT_UNKNOWN: {
    cause: 'There is no deployment of this name in the state folder of the site.',
    fix: 'list the deployments with `hpcserve status`; check --site and state_dir',
    http_status: 404,
    exit_code: 9,
  },
  E_DEPLOYMENT_RUNS: {
    cause: 'What was asked for is for a deployment that is stopped, and this one is to serve, or has jobs.',
    fix: 'end it with `hpcserve stop NAME`, then run the command again',
    http_status: 409,
    exit_code: 10,
  },
  E_MODEL_NAME_TAKEN: {
    cause:
      'An alias is the name of a model of another deployment, or a model has the name of an alias there.',
    fix: 'give the alias or the model another name in model.yaml, or stop the other deployment first',
    http_status: 409,
    exit_code: 10,
  },
  E_DEPLOYMENT_LOCKED: {
    cause: 'Another hpcserve command is changing the same deployment at this moment.',
    fix: 'wait until it ends; `hpcserve status NAME` works meanwhile',
    http_status: 409,
    exit_code: 10,
  },
  E_DEPLOYMENT_STATE: {
    cause: 'The state file of a deployment is damaged or was written by a newer version.',
    fix: 'look at the file named; jobs can be found by their comment with `squeue --me -o "%i %k"`',
    http_status: 500,
    exit_code: 12,
  },
  E_DEPLOYMENT_FAILED: {
    cause: 'A job or an engine of the deployment ended or failed before the deployment served.',
    fix: 'read the log with `hpcserve logs NAME`, correct the cause, and run deploy again',
    http_status: 500,
    exit_code: 8,
  },
  E_DEPLOYMENT_TIMEOUT: {
    cause: 'The deployment did not serve within the time given by --timeout; its jobs were left as they are.',
    fix: 'follow it with `hpcserve status NAME --watch`, or end it with `hpcserve stop NAME`',
    http_status: 504,
    exit_code: 8,
  },
  E_DEPLOYMENT_STOP: {
    cause:
      'Jobs or processes of a deployment were still there after the time given to stop, or could not be ended.',
    fix: 'run stop again; if a job stays in state COMPLETING, its node needs the attention of an operator',
    http_status: 504,
    exit_code: 8,
  },
  E_STAGES_IMPOSSIBLE: {
    cause: 'A pipeline cannot be given so many stages where it runs: devices, memory, layers, or it is none.',
    fix: 'give `parallel.pipeline` of model.yaml the numbers of stages that it may have (stages_min, stages_max) and deploy again: then devices and memory are planned for all of them',
    http_status: 409,
    exit_code: 5,
  },
  E_SHELL_PLACE: {
    cause: 'What a shell was to be opened on is no deployment, no node of one, or has no job that runs.',
    fix: '`hpcserve status` names deployments and their nodes; a shell needs a job that runs',
    http_status: 404,
    exit_code: 9,
  },
  E_JOBS_LIMIT: {
    cause: 'More jobs than limits.max_jobs of the site config allows this tool to keep in the queue.',
    fix: 'stop a deployment that is not needed, ask for fewer replicas, or raise limits.max_jobs where the site allows it',
    http_status: 429,
    exit_code: 10,
  },
  E_JOINED_NODE_GONE: {
    cause: 'A launch was planned onto a node that had joined by `hpcserve run`, and that node has left.',
    fix: 'run `hpcserve run` in an allocation again, or deploy again: the plan is made on what there is now',
    http_status: 503,
    exit_code: 10,
  },
  E_JOINED_NODE_ORDER: {
    cause: 'A joined node was told to run something that is no launch of a deployment of its site.',
    fix: 'see who can write to the state folder: it and everything in it should be 0700; then deploy again',
    http_status: 500,
    exit_code: 12,
  },
  E_STATE_FOLDER: {
    cause: 'The state folder does not exist, is not a folder, or cannot be written.',
    fix: 'name a folder on a filesystem that login and compute nodes share as `state_dir` of the site config',
    http_status: 500,
    exit_code: 12,
  },
  E_LOCAL_PROCESS: {
    cause: 'A process of the local site could not be started or ended.',
    fix: 'see the reason of the operating system; `hpcserve doctor` checks limits and permissions',
    http_status: 500,
    exit_code: 12,
  },
  E_GATEWAY_START: {
    cause: 'The gateway was started but did not answer in time.',
    fix: 'read its log (named above), correct the cause, and run the command again',
    http_status: 502,
    exit_code: 8,
  },
  E_GATEWAY_UNREACHABLE: {
    cause: 'The gateway of the site does not run, or does not answer at its address.',
    fix: 'start it with `hpcserve deploy FILE`; `hpcserve doctor` tells what is in the way',
    http_status: 502,
    exit_code: 7,
  },
  E_GATEWAY_ANSWER: {
    cause: 'The gateway refused a request of the command, or answered with something unexpected.',
    fix: 'see its words; where the key is refused, make one with `hpcserve keys create`',
    http_status: 502,
    exit_code: 7,
  },
  E_KEEPER_START: {
    cause: 'The process that keeps deployments alive ended at once, or did not come up.',
    fix: 'Look at the end of keeper.log in the state folder; `hpcserve keep` does the same in the foreground.',
    http_status: 500,
    exit_code: 8,
  },
  E_BACKFILL_NOWHERE: {
    cause: 'The site has no preemptible nodes, or no deployment wants replicas on them.',
    fix: 'give a node kind of the site config `tier: scavenger` and its preemptible partition or QoS, and a model of model.yaml `scavenger: { replicas: N }`',
    http_status: 409,
    exit_code: 5,
  },
  E_BACKFILL_RUNNING: {
    cause: 'One process a site puts replicas on idle nodes, and there is one already.',
    fix: 'Nothing needs to be done; end that one first to run it elsewhere.',
    http_status: 409,
    exit_code: 10,
  },
  E_KEEPER_RUNNING: {
    cause: 'One process keeps the deployments of a site alive, and there is one already.',
    fix: 'Nothing needs to be done; `hpcserve status` says where it runs.',
    http_status: 409,
    exit_code: 10,
  },
});
