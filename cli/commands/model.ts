/** `hpcserve model …`: looking at, making, fetching and checking model files. */
import type { Command } from 'commander';
import type { CliContext } from '../context.ts';
import { registerModelCheck } from './model-check.ts';
import { registerModelInspect } from './model-inspect.ts';
import { registerModelPull } from './model-pull.ts';
import { registerModelSynth } from './model-synth.ts';

export function registerModelCommands(command: Command, context: CliContext): void {
  const model = command.addHelpText(
    'after',
    `
Examples:
  $ hpcserve model inspect model.gguf
  $ hpcserve model check hf:org/name
  $ hpcserve model pull hf:org/name
  $ hpcserve model synth tiny.gguf --preset tiny-llama`,
  );
  registerModelInspect(model, context);
  registerModelCheck(model, context);
  registerModelPull(model, context);
  registerModelSynth(model, context);
}
