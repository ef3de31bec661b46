import { defineErrors } from './define.ts';

/** What can go wrong on a node of a job, and in the mesh that node agents and gateways form. */
export const agentErrors = defineErrors({
  E_MESH_KEY: {
    cause: 'The network key of the mesh cannot be read, written or trusted.',
    fix: 'check owner and mode of network.key in the mesh folder (0600, or 0640 in a folder of a group); to start a new mesh, stop everything and remove the file',
    http_status: 500,
    exit_code: 12,
  },
  E_MESH_FOLDER: {
    cause: 'The rendezvous folder of the mesh cannot be reached, read or written.',
    fix: 'check that the filesystem is mounted on this host, that there is space, and that you may write there',
    http_status: 503,
    exit_code: 12,
  },
  E_MESH_PEER: {
    cause: 'A peer did not show a key that a live record of this mesh names.',
    fix: 'use the same mesh folder and network.key on both sides; restart the side whose record is missing',
    http_status: 403,
    exit_code: 7,
  },
  E_MESH_PINNING: {
    cause: 'The host at the address of a session showed another key than the one in its record.',
    fix: 'the session is gone and another process has its port, or somebody is in between: redeploy if it persists',
    http_status: 502,
    exit_code: 7,
  },
  E_MESH_CONNECT: {
    cause: 'None of the addresses of a session accepts connections.',
    fix: 'check that this host reaches the node (firewall, `network` in the site config) and that its job still runs',
    http_status: 502,
    exit_code: 7,
  },
  E_PROVIDER_KEY: {
    cause: 'The key that proves who provides sessions cannot be read, written or trusted.',
    fix: 'check owner and mode (0600) of provider-<uid>.key in the state folder of the site; removed, a new one is made at the next deploy, and who trusts the old one has to be told the new fingerprint',
    http_status: 500,
    exit_code: 12,
  },
  E_DELEGATION: {
    cause:
      'What a job proves its provider with is missing, damaged, over, or of another launch; it serves on, as nobody’s.',
    fix: 'the keeper writes it anew (`hpcserve keep --once` does it now), and the job reads it again within five minutes',
    http_status: 500,
    exit_code: 12,
  },
  E_AGENT_ACCESS: {
    cause: 'The provider of a session does not let this member of the mesh use or operate it.',
    fix: 'ask the provider to list your fingerprint (`hpcserve provider`) in mesh.users or mesh.operators of its site config, and to deploy again',
    http_status: 403,
    exit_code: 7,
  },
  E_AGENT_LAUNCH: {
    cause: 'The launch file of a job cannot be read, or is not what this version understands.',
    fix: 'deploy again with the same version of hpcserve on login and compute nodes; do not edit launch.json',
    http_status: 500,
    exit_code: 12,
  },
  E_AGENT_DEVICES: {
    cause: 'The job has fewer devices on this node than its units need.',
    fix: 'compare the gres of the site config with what Slurm gave the job (`scontrol show job`, `nvidia-smi -L`)',
    http_status: 500,
    exit_code: 8,
  },
  E_AGENT_MODEL_PATH: {
    cause: 'The path of the model does not exist, or cannot be read, on the compute node.',
    fix: 'put the model on a filesystem that compute nodes mount, and name it by the path it has there',
    http_status: 500,
    exit_code: 4,
  },
  E_AGENT_ENGINE_PATHS: {
    cause:
      'Where the site starts the engine, in a container mostly, something is not visible: the folder of its socket, its model, or a file that its command names.',
    fix: 'bind it in the prefix of `runtime.engines` in the site config; what apptainer, podman and enroot take is added by itself',
    http_status: 500,
    exit_code: 4,
  },
  E_AGENT_PORT: {
    cause: 'No port for the node agent is free on the node.',
    fix: 'widen `port_range` in the site config, or remove it to take any free port',
    http_status: 500,
    exit_code: 12,
  },
  E_AGENT_NETWORK: {
    cause: 'The network that the site config names does not exist on the node.',
    fix: 'correct `network` in the site config (an interface name or a CIDR); `ip -brief address` on the node lists them',
    http_status: 500,
    exit_code: 3,
  },
  E_AGENT_STATE: {
    cause: 'The node agent cannot write its state or log files into the launch folder.',
    fix: 'check free space and quota of the shared filesystem, and that it is mounted on the node',
    http_status: 500,
    exit_code: 12,
  },
  E_AGENT_RUNTIME_FOLDER: {
    cause: 'The folder for sockets on the node cannot be made, is open to others, or has too long a path.',
    fix: 'set a short local folder in the site config (paths of unix sockets end at 107 characters)',
    http_status: 500,
    exit_code: 12,
  },
  E_AGENT_UNITS_FAILED: {
    cause: 'Every unit of a node agent failed, so that it has nothing to serve.',
    fix: 'see the errors of the units, and their logs in the launch folder',
    http_status: 503,
    exit_code: 8,
  },
  E_AGENT_NOT_READY: {
    cause:
      'A request came for a model that this session does not serve now: still loading, failed, or draining.',
    fix: 'send it to another replica, or again later',
    http_status: 503,
    exit_code: 8,
  },
  E_AGENT_REQUEST: {
    cause: 'A request to an agent was malformed, too large, or for a path it does not answer.',
    fix: 'use the OpenAI paths under /v1; keep bodies and headers under the documented limits',
    http_status: 400,
    exit_code: 2,
  },
  E_AGENT_UPSTREAM: {
    cause: 'The engine behind an agent ended the connection or did not answer.',
    fix: 'send the request again; if it repeats, see the log of the unit in the launch folder',
    http_status: 502,
    exit_code: 11,
  },
  E_AGENT_WORKER: {
    cause: 'The device worker, which runs the native engine, ended or reported that it cannot go on.',
    fix: 'see the log of the unit in the launch folder; `hpcserve doctor` checks the native library',
    http_status: 503,
    exit_code: 11,
  },
  E_REPLICA_SILENT: {
    cause:
      'A device worker said nothing for too long and was killed. Requests that it was reading then are answered with this, since one of them may be why.',
    fix: 'it is started again by itself; where it repeats, see `details.requests` in the agent’s log; if no request is to blame, it may have been stopped (SIGSTOP), starved of cores, or stuck in a driver or filesystem: see `dmesg` of the node',
    http_status: 502,
    exit_code: 11,
  },
  E_AGENT_ENGINE_START: {
    cause: 'The program of a wrapped engine could not be started.',
    fix: 'check that it is installed where the job runs, and `runtime` in the site config (module, venv, container)',
    http_status: 503,
    exit_code: 11,
  },
  E_AGENT_ENGINE_EXIT: {
    cause: 'A wrapped engine ended by itself.',
    fix: 'its last lines say why; often memory: fewer sequences, a shorter context, or more devices',
    http_status: 503,
    exit_code: 11,
  },
  E_AGENT_ENGINE_READY: {
    cause: 'A wrapped engine did not become ready in time, though its process lives.',
    fix: 'see the log of the unit; a large model on a slow filesystem may need more time (HPCSERVE_ENGINE_READY_S)',
    http_status: 503,
    exit_code: 11,
  },
  E_AGENT_ENGINE_HANG: {
    cause:
      'A wrapped engine lived and did not work: its health checks failed, or it computed nothing for `timeouts.stall_s`. It was killed, and is started again after a pause, up to three times in ten minutes.',
    fix: 'see the log of the unit and the failure report beside it; if the engine was only busy, raise `timeouts.health_s` or `timeouts.stall_s` of the model',
    http_status: 503,
    exit_code: 11,
  },
  E_AGENT_ENGINE_STALLED: {
    cause:
      'A wrapped engine lives, and for many times its usual gap none of its streams got a token, or one of its processes is stopped. It gets no requests and its streams move on, until it computes again or is started again.',
    fix: 'see `hpcserve status` and the log of the unit; a process that was stopped (SIGSTOP) goes on by SIGCONT',
    http_status: 502,
    exit_code: 11,
  },
  E_AGENT_DEVICE_FAILED: {
    cause: 'The device failed under another session, so that nothing that runs on it can be trusted.',
    fix: 'see the error of the session that found it; deploy again, away from that node (`slurm.exclude`) if it repeats, and tell the site',
    http_status: 503,
    exit_code: 11,
  },
  E_DEVICE_TAKEN: {
    cause: 'Two device workers were given one GPU. Its memory is for one of them.',
    fix: 'stop the deployment that has it (`hpcserve status`), or put both models into one model.yaml: they share a worker',
    http_status: 503,
    exit_code: 8,
  },
  E_AGENT_PART_LOST: {
    cause: 'A replica on several nodes lost one of its parts: the others cannot go on without it.',
    fix: 'see the log of the part that ended first (`hpcserve logs`); another job takes its place where the keeper runs',
    http_status: 503,
    exit_code: 11,
  },
  E_AGENT_TIMEOUT: {
    cause: 'An answer took longer than the `timeouts` of its model allow.',
    fix: 'ask for fewer tokens or stream the answer; raise `timeouts` of the model in model.yaml if such answers are meant to be',
    http_status: 504,
    exit_code: 11,
  },
  E_AGENT_ENGINE_PORT: {
    cause: 'Another user of the node listens on the loopback port that was chosen for an engine.',
    fix: 'deploy again, which chooses another port; if it repeats, somebody does it on purpose: tell the site, and use an engine that listens on a unix socket',
    http_status: 502,
    exit_code: 11,
  },
  E_AGENT_ENGINE_EXPOSED: {
    cause:
      'An engine that knows neither keys nor unix sockets has to run in a network namespace of its own, and the node permits none.',
    fix: 'ask for user namespaces on the compute nodes (user.max_user_namespaces), or use an engine that takes a key: llama.cpp reads the same files',
    http_status: 503,
    exit_code: 8,
  },
  E_AGENT_ENGINE_OPTION: {
    cause: 'The model asks for something that the chosen engine cannot do.',
    fix: 'remove the option, or choose another engine',
    http_status: 400,
    exit_code: 3,
  },
});
