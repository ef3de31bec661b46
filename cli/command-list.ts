/**
 * The words that may be typed first, in the order of the help, with what the help of hpcserve itself says of each. The
 * rest of a command, its options and what it does, is loaded when it is typed: all of them together take half a second.
 */
import type { Register } from './command-tree.ts';

export interface CommandOutline {
  /** Its arguments, as commander writes them. */
  takes?: string;
  says: string;
  /** It has options of its own, or the help of hpcserve would have to load it to know. */
  options: boolean;
  /** What to do after Ctrl-C; absent: it leaves nothing behind, and nothing is said. */
  interrupted?: string;
  /** It only shows something and holds nothing: where its reader leaves, it ends wherever it is. */
  shows?: true;
  /** Typed by programs alone. */
  hidden?: true;
  register: () => Promise<Register>;
}

export const commandList: Readonly<Record<string, CommandOutline>> = {
  init: {
    says: 'Write a commented site config from what this machine and its Slurm say of themselves',
    options: true,
    register: async () => (await import('./commands/init.ts')).registerInit,
  },
  try: {
    takes: '[model]',
    says: 'Serve a small model on this machine, chat with it in the terminal, and clean up',
    options: true,
    register: async () => (await import('./commands/try.ts')).registerTry,
  },
  deploy: {
    takes: '<file>',
    says: 'Submit the deployment of a model.yaml, follow it until it serves, print URL and key',
    options: true,
    interrupted:
      'what was submitted goes on: follow it with `hpcserve status --watch`, or end it with `hpcserve stop NAME`',
    register: async () => (await import('./commands/deploy.ts')).registerDeploy,
  },
  plan: {
    takes: '<file>',
    says: 'Show what deploy would run where, and why',
    options: true,
    shows: true,
    register: async () => (await import('./commands/plan.ts')).registerPlan,
  },
  simulate: {
    takes: '[file]',
    says: 'Estimate the latency and throughput of a model on devices, without running it',
    options: true,
    shows: true,
    register: async () => (await import('./commands/simulate.ts')).registerSimulate,
  },
  render: {
    takes: '<file>',
    says: 'Print the job scripts that deploy would submit, without submitting',
    options: true,
    shows: true,
    register: async () => (await import('./commands/render.ts')).registerRender,
  },
  status: {
    takes: '[name]',
    says: 'Show what runs, what waits and why, and what went wrong',
    options: true,
    shows: true,
    register: async () => (await import('./commands/status.ts')).registerStatus,
  },
  logs: {
    takes: '[name]',
    says: 'Show the logs of a deployment: job, node agents, engines',
    options: true,
    shows: true,
    register: async () => (await import('./commands/logs.ts')).registerLogs,
  },
  shell: {
    takes: '<deployment|node> [command...]',
    says: 'A shell on a node of a deployment, in its job, beside what runs there',
    options: true,
    register: async () => (await import('./commands/shell.ts')).registerShell,
  },
  move: {
    takes: '<deployment>',
    says: 'Give the pipelines of a deployment another number of stages while they answer',
    options: true,
    interrupted: 'see with `hpcserve status NAME` whether it has other stages; the deployment goes on',
    register: async () => (await import('./commands/move.ts')).registerMove,
  },
  run: {
    takes: '[command...]',
    says: 'Serve with a command of yours, here and now; or lend this node to the deployments of the site',
    options: true,
    interrupted: 'see what is left with `hpcserve status`',
    register: async () => (await import('./commands/run.ts')).registerRun,
  },
  stop: {
    takes: '[name]',
    says: 'End a deployment: its jobs, its processes, and the gateway with the last one',
    options: true,
    interrupted:
      'jobs are ending: see which with `hpcserve status`, or wait for them with the same command again',
    register: async () => (await import('./commands/stop.ts')).registerStop,
  },
  forget: {
    takes: '<name>',
    says: 'Remove the logs and records of a deployment that is stopped',
    options: true,
    register: async () => (await import('./commands/forget.ts')).registerForget,
  },
  drain: {
    takes: '<node>',
    says: 'Empty a node: its running answers go on elsewhere, and its jobs end',
    options: true,
    interrupted: 'see with `hpcserve nodes` which agents are left; `hpcserve status` shows the jobs',
    register: async () => (await import('./commands/drain.ts')).registerDrain,
  },
  keep: {
    says: 'Look after all deployments of the site: successors before time limits, replacements',
    options: true,
    register: async () => (await import('./commands/keep.ts')).registerKeep,
  },
  backfill: {
    says: 'Put replicas on idle preemptible nodes, and give them back',
    options: true,
    register: async () => (await import('./commands/backfill.ts')).registerBackfill,
  },
  chat: {
    takes: '<model> [prompt...]',
    says: 'Ask a model one thing and stream its answer; the prompt may come from stdin',
    options: true,
    shows: true,
    register: async () => (await import('./commands/chat.ts')).registerChat,
  },
  models: {
    says: 'List the models that the gateway answers for',
    options: true,
    shows: true,
    register: async () => (await import('./commands/models.ts')).registerModels,
  },
  model: {
    says: 'Inspect, check, download and synthesize model files',
    options: false,
    interrupted: 'run the same command again: a download goes on where it stopped',
    register: async () => (await import('./commands/model.ts')).registerModelCommands,
  },
  endpoint: {
    says: 'Print the base URL for OpenAI clients',
    options: true,
    shows: true,
    register: async () => (await import('./commands/endpoint.ts')).registerEndpoint,
  },
  gateway: {
    says: 'Start, list and stop further gateways of the site',
    options: false,
    interrupted: 'see with `hpcserve gateway list` which gateways run',
    register: async () => (await import('./commands/gateway.ts')).registerGateway,
  },
  connect: {
    says: 'Bring the gateway of a site over ssh to a port of this machine, through drops',
    options: true,
    register: async () => (await import('./commands/connect.ts')).registerConnect,
  },
  keys: {
    says: 'Make, list and revoke API keys of the gateway',
    options: false,
    register: async () => (await import('./commands/keys.ts')).registerKeys,
  },
  usage: {
    says: 'Sum up who used what, from the ledgers of all gateways',
    options: true,
    shows: true,
    register: async () => (await import('./commands/usage.ts')).registerUsage,
  },
  trace: {
    says: 'Export requests without saying whose or what they were, and analyze such traces',
    options: false,
    shows: true,
    register: async () => (await import('./commands/trace.ts')).registerTrace,
  },
  top: {
    says: 'Watch the devices that models share: memory, headrooms, and what was decided and why',
    options: true,
    shows: true,
    register: async () => (await import('./commands/top.ts')).registerTop,
  },
  provider: {
    says: 'Show who you are to others of the mesh: your name and the fingerprint of your key',
    options: false,
    shows: true,
    register: async () => (await import('./commands/provider.ts')).registerProvider,
  },
  nodes: {
    says: 'Show the kinds of nodes of the site, and the nodes that serve models now',
    options: true,
    shows: true,
    register: async () => (await import('./commands/nodes.ts')).registerNodes,
  },
  sites: {
    says: 'List the site configs that can be named with --site',
    options: false,
    shows: true,
    register: async () => (await import('./commands/sites.ts')).registerSites,
  },
  native: {
    says: 'Show the native engine’s libraries, and add a backend for GPUs',
    options: false,
    interrupted: 'run the same command again',
    register: async () => (await import('./commands/native.ts')).registerNative,
  },
  doctor: {
    says: 'Check this machine, the site config, Slurm, the gateway and the deployments',
    options: false,
    shows: true,
    register: async () => (await import('./commands/doctor.ts')).registerDoctor,
  },
  config: {
    says: 'Show settings and where each comes from',
    options: false,
    shows: true,
    register: async () => (await import('./commands/config.ts')).registerConfig,
  },
  completion: {
    takes: '<shell>',
    says: 'Print a script for shell completion: commands, options, deployments, sites',
    options: false,
    shows: true,
    register: async () => (await import('./commands/completion.ts')).registerCompletion,
  },
  __complete: {
    takes: '[words...]',
    says: 'Words that may stand where the last one is being typed',
    options: false,
    shows: true,
    hidden: true,
    register: async () => (await import('./commands/completion.ts')).registerComplete,
  },
};
