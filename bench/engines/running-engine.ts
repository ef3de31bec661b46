/** An engine that a node agent runs, found by its command line, and the way to it that passes none of our processes. */
import { readFileSync } from 'node:fs';
import { processesWithArgument } from '../../host/process-identity.ts';

export interface RunningEngine {
  /** The unix socket that it serves on. */
  socket: string;
  key: string;
}

/**
 * The engines that serve a model folder, without the processes that they started themselves.
 *
 * @throws Error: one has no socket or no key, so that it is another version than was meant
 */
export function runningEngines(model_folder: string): RunningEngine[] {
  return processesWithArgument((argument) => argument === model_folder).flatMap((pid) => {
    const argv = nulSeparated(pid, 'cmdline');
    const at = argv.findIndex((word, index) => word === 'serve' && /(^|\/)vllm$/.test(argv[index - 1] ?? ''));
    if (at < 0) return [];
    const socket = argv[argv.indexOf('--uds') + 1];
    const key = nulSeparated(pid, 'environ')
      .find((entry) => entry.startsWith('VLLM_API_KEY='))
      ?.slice('VLLM_API_KEY='.length);
    if (!argv.includes('--uds') || socket === undefined || key === undefined)
      throw new Error('the engine behind hpcserve has no --uds, or no key: another version than was meant');
    return [{ socket, key }];
  });
}

function nulSeparated(pid: number, file: string): string[] {
  return readFileSync(`/proc/${pid}/${file}`, 'utf8').split('\0').slice(0, -1);
}
