import { spawn } from 'node:child_process';
import { constants, hostname } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Command, InvalidArgumentError } from 'commander';
import { readJsonIfThere } from '../../control/atomic-file.ts';
import { readableLine } from '../../control/readable-line.ts';
import { prepareRun, visibleGpus } from '../../control/run-command.ts';
import type { AgentState } from '../../spec/agent-state.ts';
import { packageRoot } from '../../spec/package-root.ts';
import { launchFiles } from '../../spec/state-layout.ts';
import type { CliContext } from '../context.ts';
import { printable } from '../format/style.ts';
import { RanElsewhere } from '../remote/ran-elsewhere.ts';
import { openSession } from '../site-session.ts';

interface RunOptions {
  model: string;
  context: number;
  maxSequences: number;
  gpus?: number;
}

/** Time between two looks at what the agent says of itself, ms. */
const look_ms = 250;

export function registerRun(program: Command, context: CliContext): void {
  program
    .command('run <command...>')
    .description('Serve a model with a command of yours, here and now, behind the URL of the site')
    .requiredOption('--model <name>', 'name under which clients ask for it')
    .option('--context <tokens>', 'longest sequence', atLeast(16), 4096)
    .option('--max-sequences <number>', 'requests at the same time', atLeast(1), 16)
    .option('--gpus <number>', 'GPUs of this node it uses (default: those the job step sees)', atLeast(0))
    .addHelpText(
      'after',
      `
For an allocation you have already (salloc, a notebook, a job script). The command is an OpenAI-compatible server; it
is told where to listen by {socket} or {port} in its words, and its key is in $HPCSERVE_ENGINE_KEY. It is started under
a node agent, joins the mesh once it answers /v1/models, and leaves with the allocation, or with Ctrl-C.

Examples:
  $ hpcserve run --model tiny -- llama-server -m tiny.gguf --host {socket}
  $ srun --gpus 4 hpcserve run --model big --context 32768 -- sh -c 'vllm serve /models/big --uds {socket} -tp 4'`,
    )
    .action(async (command: readonly string[], options: RunOptions) => {
      const { loaded, facts } = openSession(context, { command: 'hpcserve run' });
      const { launch, launch_file } = prepareRun(
        {
          model: options.model,
          command,
          context_tokens: options.context,
          max_sequences: options.maxSequences,
          gpus: options.gpus ?? visibleGpus(context.environment) ?? 0,
        },
        loaded,
        facts,
      );
      const node = (context.environment.SLURMD_NODENAME ?? hostname()).replace(/[^A-Za-z0-9._-]/g, '_');
      const agent = spawn(
        process.execPath,
        [
          join(packageRoot, 'dist/agent/main.js'),
          ...['--launch', launch_file, '--node-index', '0', '--node', node],
        ],
        { stdio: ['ignore', 'inherit', 'pipe'] },
      );
      createInterface(agent.stderr).on('line', (line) =>
        context.note(context.json ? line : printable(readableLine(line))),
      );
      const ended = new Promise<number>((resolve) => {
        agent.once('exit', (code, signal) => resolve(code ?? 128 + constants.signals[signal!]));
      });
      // It drains: answers that run are handed over before it ends.
      const stop = (): void => void agent.kill('SIGTERM');
      context.signal.addEventListener('abort', stop, { once: true });
      process.once('SIGTERM', stop);
      let over = false;
      void ended.then(() => {
        over = true;
      });
      const state_file = join(launch.launch_folder, launchFiles.agentState(node));
      for (let told = ''; !over; ) {
        const state = readJsonIfThere(state_file) as AgentState | undefined;
        const session = state?.sessions.find(({ unit }) => unit !== undefined);
        const now = session?.models[0]?.state ?? '';
        if (session && now === 'serving' && told !== now)
          context.note(
            `${options.model} serves on ${node}; its output: ${session.log_file ?? launch.launch_folder}`,
          );
        told = now;
        await Promise.race([ended, sleep(look_ms)]);
      }
      const code = await ended;
      if (code !== 0) throw new RanElsewhere(code);
    });
}

function atLeast(least: number): (text: string) => number {
  return (text) => {
    if (!/^\d+$/.test(text) || Number(text) < least)
      throw new InvalidArgumentError(`a whole number, at least ${least}.`);
    return Number(text);
  };
}
