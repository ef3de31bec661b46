/** What is done to the processes of a vLLM, the same to a bare one and to one behind us. */
import { readFileSync } from 'node:fs';
import { processTree } from '../../host/process-tree.ts';

/** The process that computes, while the one that answers HTTP goes on. */
export async function computingProcess(engine: number): Promise<number> {
  const found = (await processTree(engine)).find((pid) =>
    readFileSync(`/proc/${pid}/comm`, 'utf8').startsWith('VLLM::EngineCor'),
  );
  if (found === undefined) throw new Error(`vLLM ${engine} has no process VLLM::EngineCore`);
  return found;
}

/** All of it at once, as when its memory is over. */
export async function killEngine(engine: number): Promise<void> {
  for (const pid of await processTree(engine)) signal(pid, 'SIGKILL');
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch (error) {
    // It ended with its parent, a moment ago.
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}
