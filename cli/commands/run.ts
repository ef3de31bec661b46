import { spawn } from 'node:child_process';
import { constants, hostname } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Command, InvalidArgumentError, Option } from 'commander';
import { type AgentProcess, JoinedHost } from '../../control/joined-node/joined-host.ts';
import { prepareJoin, prepareRun, visibleGpus } from '../../control/joined-node/own-server.ts';
import type { PrepareFacts } from '../../control/runner/prepare-launch.ts';
import { readAgentState } from '../../control/state/agent-state-file.ts';
import { readableLine } from '../../control/state/readable-line.ts';
import type { LoadedSite } from '../../control/state/site-files.ts';
import { compiledFile } from '../../host/programs.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { launchFiles } from '../../spec/state-layout.ts';
import type { CliContext } from '../context.ts';
import { printable } from '../format/style.ts';
import { RemoteExit } from '../remote/remote-exit.ts';
import { openSession } from '../site-session.ts';

interface RunOptions {
  model?: string;
  context: number;
  maxSequences: number;
  gpus?: number;
  tier: 'stable' | 'scavenger';
}

/** Time between two looks at what the agent says of itself, ms. */
const look_ms = 250;

export function registerRun(command: Command, context: CliContext): void {
  command
    .option('--model <name>', 'with a command: name under which clients ask for it')
    .option('--context <tokens>', 'with a command: longest sequence', atLeast(16), 4096)
    .option('--max-sequences <number>', 'with a command: requests at the same time', atLeast(1), 256)
    .option(
      '--gpus <number>',
      'with a command: GPUs of this node it uses (default: those the job step sees)',
      atLeast(0),
    )
    .addOption(
      new Option('--tier <tier>', 'without a command: what deployments may count on')
        .choices(['stable', 'scavenger'])
        .default('scavenger'),
    )
    .addHelpText(
      'after',
      `
For an allocation you have already (salloc, a notebook, a job script). The command is an OpenAI-compatible server; it
is told where to listen by {socket} or {port} in its words, and its key is in $HPCSERVE_ENGINE_KEY. It is started under
a node agent, joins the mesh once it answers /v1/models, and leaves with the allocation, or with Ctrl-C.

Without a command the node joins the mesh without a model. \`hpcserve nodes\` shows it with its hardware, plans have it
as a node kind of its own (joined-NODE), and deployments are placed onto it until it leaves.

Examples:
  $ hpcserve run --model tiny -- llama-server -m tiny.gguf --host {socket}
  $ srun --gpus 4 hpcserve run --model big --context 32768 -- sh -c 'vllm serve /models/big --uds {socket} -tp 4'
  $ salloc --nodes 2 --gpus-per-node 4 srun hpcserve run`,
    )
    .action(async (command: readonly string[], options: RunOptions, self: Command) => {
      refuseIdleOptions(self, command.length > 0);
      const { loaded, facts } = openSession(context, { command: 'hpcserve run' });
      const node = (context.environment.SLURMD_NODENAME ?? hostname()).replace(/[^A-Za-z0-9._-]/g, '_');
      const code =
        command.length > 0
          ? await serveCommand(context, command, options, loaded, facts, node)
          : await lendNode(context, options, loaded, facts, node);
      if (code !== 0) throw new RemoteExit(code);
    });
}

/**
 * What is said of a command means nothing without one, as where a variable that was to hold it is empty; and the
 * reverse.
 */
function refuseIdleOptions(self: Command, withCommand: boolean): void {
  const idle = withCommand ? ['tier'] : ['model', 'context', 'maxSequences', 'gpus'];
  const given = self.options.filter(
    (option) =>
      idle.includes(option.attributeName()) && self.getOptionValueSource(option.attributeName()) === 'cli',
  );
  if (given.length === 0) return;
  throw new HpcserveError('E_USAGE', {
    what: `${given.map(({ long }) => long).join(', ')} cannot be given ${withCommand ? 'with' : 'without'} a command`,
    because: withCommand
      ? 'it is about a node that is lent to deployments, and a command makes it serve one model'
      : 'without a command this node would be lent to deployments, which say themselves what they need',
    try: withCommand
      ? 'leave out the option, or the command'
      : 'hpcserve run --model NAME -- SERVER … {socket}',
  });
}

async function serveCommand(
  context: CliContext,
  command: readonly string[],
  options: RunOptions,
  loaded: LoadedSite,
  facts: PrepareFacts,
  node: string,
): Promise<number> {
  const { model } = options;
  if (model === undefined)
    throw new HpcserveError('E_USAGE', {
      what: 'the command has no name to be asked for by',
      because: '--model was not given',
      try: 'hpcserve run --model NAME -- SERVER … {socket}',
    });
  const { launch, launch_file } = prepareRun(
    {
      model,
      command,
      context_tokens: options.context,
      max_sequences: options.maxSequences,
      gpus: options.gpus ?? visibleGpus(context.environment) ?? 0,
    },
    loaded,
    facts,
  );
  const agent = startAgent(context, launch_file, node);
  whenAsked(context, {
    // It drains: answers that run are handed over before it ends.
    stop: () => agent.signal('SIGTERM'),
    signal: (name) => agent.signal(name),
  });
  let over = false;
  void agent.ended.then(() => {
    over = true;
  });
  const state_file = join(launch.launch_folder, launchFiles.agentState(node));
  for (let told = ''; !over; ) {
    const state = readAgentState(state_file);
    const session = state?.sessions.find(({ unit }) => unit !== undefined);
    const now = session?.models[0]?.state ?? '';
    if (session && now === 'serving' && told !== now)
      context.note(`${model} serves on ${node}; its output: ${session.log_file ?? launch.launch_folder}`);
    told = now;
    await Promise.race([agent.ended, sleep(look_ms)]);
  }
  return agent.ended;
}

async function lendNode(
  context: CliContext,
  options: RunOptions,
  loaded: LoadedSite,
  facts: PrepareFacts,
  node: string,
): Promise<number> {
  const host = new JoinedHost({
    layout: loaded.layout,
    idle: prepareJoin(loaded, facts, options.tier),
    node,
    startAgent: (launch_file) => startAgent(context, launch_file, node),
    note: context.note,
    now_ms: context.now_ms,
    command: 'hpcserve run',
  });
  whenAsked(context, host);
  return host.run();
}

/** Ctrl-C, a terminal that closes and the end of the allocation stop it; what Slurm says beside that is handed on. */
function whenAsked(context: CliContext, asked: { stop(): void; signal(name: NodeJS.Signals): void }): void {
  const stop = (): void => {
    // The first one interrupts the command; further ones would end it and leave the agent behind.
    process.on('SIGTERM', () => asked.stop());
    asked.stop();
  };
  if (context.signal.aborted) stop();
  else context.signal.addEventListener('abort', stop, { once: true });
  // The agent may hear nothing of the terminal, and would stay.
  process.on('SIGHUP', context.interrupt);
  for (const name of ['SIGUSR1', 'SIGCONT'] as const) process.on(name, () => asked.signal(name));
}

function startAgent(context: CliContext, launch_file: string, node: string): AgentProcess {
  const agent = spawn(
    process.execPath,
    [compiledFile('agent/main.js'), ...['--launch', launch_file, '--node-index', '0', '--node', node]],
    { stdio: ['ignore', 'inherit', 'pipe'] },
  );
  createInterface(agent.stderr).on('line', (line) =>
    context.note(context.json ? line : printable(readableLine(line))),
  );
  return {
    ended: new Promise((resolve) => {
      agent.once('exit', (code, signal) => resolve(code ?? 128 + constants.signals[signal!]));
    }),
    signal: (name) => void agent.kill(name),
  };
}

function atLeast(least: number): (text: string) => number {
  return (text) => {
    if (!/^\d+$/.test(text) || Number(text) < least)
      throw new InvalidArgumentError(`a whole number, at least ${least}.`);
    return Number(text);
  };
}
