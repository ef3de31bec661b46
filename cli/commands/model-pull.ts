import { type Command, InvalidArgumentError } from 'commander';
import type { PullEvent } from '../../control/model-source/pull/progress.ts';
import { pullModel } from '../../control/model-source/pull/pull.ts';
import type { CliContext } from '../context.ts';
import { formatBytes } from '../format/quantities.ts';
import { printable } from '../format/style.ts';

interface PullFlags {
  output?: string;
  sha256?: string;
  endpoint?: string;
  cache?: string;
  include?: string[];
  parallel?: number;
}

export function registerModelPull(model: Command, context: CliContext): void {
  model
    .command('pull <source>')
    .description('Download a model into the offline cache, or a file from an address; continues and verifies')
    .option('-o, --output <path>', 'for an address: file or folder to write to')
    .option('--sha256 <hex>', 'for an address: the checksum it must have')
    .option('--include <pattern...>', 'for hf: names of files to download; * matches anything')
    .option('--endpoint <url>', 'hub to use (default: $HF_ENDPOINT, else https://huggingface.co)')
    .option('--cache <folder>', 'hub folder of the cache (default: $HF_HUB_CACHE, $HF_HOME/hub)')
    .option('--parallel <n>', 'files at once (default: 4)', positiveNumber)
    .addHelpText(
      'after',
      `
An interrupted download continues where it stopped when the same command is run again. Tokens come from
$HF_TOKEN, $HF_TOKEN_PATH or the file that \`hf auth login\` writes; proxies from $HTTPS_PROXY and $NO_PROXY.

Examples:
  $ hpcserve model pull hf:org/name
  $ hpcserve model pull hf:org/name-GGUF/name-Q4_K_M.gguf
  $ hpcserve model pull hf:org/name@v1.0 --include '*.json' '*.safetensors' --parallel 8
  $ hpcserve model pull https://example.org/model.gguf -o /scratch/models/ --sha256 HEX`,
    )
    .action(async (source: string, flags: PullFlags) => {
      const show = new PullView(context);
      const result = await pullModel({
        source,
        ...flags,
        environment: context.environment,
        working_folder: context.working_folder,
        signal: context.signal,
        on_event: (event) => show.event(event),
      });
      if (context.json) context.out(JSON.stringify({ kind: 'pulled', ...result }));
      else {
        context.note(
          `${result.files.length} files, ${formatBytes(result.bytes)}; in model.yaml: source: ${result.source}`,
        );
        context.out(result.path);
      }
    });
}

/** Events as JSON lines on stdout, or as lines on stderr, progress thinned to one line in a while. */
class PullView {
  readonly #context: CliContext;
  readonly #shownAt = new Map<string, number>();
  /** Lines on a terminal may come often, those in a log should be few. */
  readonly #interval_ms: number;

  constructor(context: CliContext) {
    this.#context = context;
    this.#interval_ms = context.tty.stderr ? 1_000 : 10_000;
  }

  event(event: PullEvent): void {
    if (this.#context.json) {
      this.#context.out(JSON.stringify(event));
      return;
    }
    if (event.kind === 'progress' && !this.#due(event.file)) return;
    this.#context.note(printable(describe(event)));
  }

  #due(file: string): boolean {
    const now = this.#context.now_ms();
    if (now - (this.#shownAt.get(file) ?? Number.NEGATIVE_INFINITY) < this.#interval_ms) return false;
    this.#shownAt.set(file, now);
    return true;
  }
}

function describe(event: PullEvent): string {
  switch (event.kind) {
    case 'listing':
      return `asking for the files of ${event.repository} at ${event.revision}`;
    case 'planned':
      return `${event.files} files, ${formatBytes(event.bytes_total)}, of which ${formatBytes(event.bytes_present)} are here`;
    case 'progress': {
      const total = event.bytes_total === undefined ? '' : ` of ${formatBytes(event.bytes_total)}`;
      return `${event.file}: ${formatBytes(event.bytes_done)}${total}, ${formatBytes(event.bytes_per_s)}/s`;
    }
    case 'note':
      return `${event.file}: ${event.message}`;
    case 'file_done':
      return `${event.file}: done, ${formatBytes(event.bytes)}, ${event.verified === 'none' ? 'nothing to verify it by' : `verified by ${event.verified}`}`;
  }
}

function positiveNumber(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value) || value < 1 || value > 64) {
    throw new InvalidArgumentError('a number from 1 to 64 is needed');
  }
  return value;
}
