import { readFileSync } from 'node:fs';
import { Vocabulary } from '../../native/vocabulary.ts';
import type { ModelLoad, ModelWeights } from '../../spec/agent-state.ts';
import type { EngineStats, LoadProgress, ModelInfo } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { PrefixCacheCounts } from '../../spec/prefix-cache.ts';
import type { ModelState } from '../../spec/session-record.ts';
import { toldWeights } from '../streaming/told-weights.ts';
import { ChatTemplate } from '../text/chat-template.ts';
import { reasoningMarks, templateReasons } from '../text/output/reasoning.ts';
import { ControlTextGuard } from '../text/prompt-tokens.ts';
import { classifyTokens, type Utf8Tokens } from '../text/sampling/utf8-constraint.ts';
import { type ToolFormat, toolFormatOf } from '../text/tools/tool-format.ts';
import { CachedPieces } from '../text/vocabulary.ts';
import type { KvShapeOfModel, KvShapeOfStage } from './compute/kv-messages.ts';
import type { FromWorker, NativeModel } from './messages.ts';

/** What turns text into tokens and back for one model; opened before its weights are loaded. */
export interface ModelText {
  vocabulary: Vocabulary;
  pieces: CachedPieces;
  template: ChatTemplate;
  /** For requests with tools, where the model has a template of its own for them. */
  tool_template: ChatTemplate | undefined;
  guard: ControlTextGuard;
  tool_format: ToolFormat | undefined;
  reasons: boolean;
  /** Control tokens that tool calls and reasoning are recognised by. */
  preserved: ReadonlySet<number>;
  /** A text of n bytes has at least n / this tokens. */
  longest_token_bytes: number;
  utf8: Utf8Tokens;
}

/** One model as the main thread of the worker knows it. */
export class ServedModel {
  /** Of a pipeline: as its layout is now. */
  config: NativeModel;
  /** The change that brought the stage that is computed here; undefined: it was there before any. */
  #layout: number | undefined;
  /** How the model is in that layout, and in the one that was prepared last, by their changes. */
  #layouts = new Map<number | undefined, NativeModel>();
  readonly created_s = Math.floor(Date.now() / 1000);
  state: ModelState = 'loading';
  error: HpcserveError | undefined;
  text: ModelText | undefined;
  info: ModelInfo | undefined;
  stats: EngineStats | undefined;
  /** The device cannot keep what its deployment promises, even without other work. */
  too_slow = false;
  /** See `ModelLoad`. */
  compute_ms: number | undefined;
  weights: ModelWeights | undefined;
  /** What its keys and values are, where they can move to other workers. */
  kv: KvShapeOfModel | undefined;
  /** The same of its stage here, where it is one of a pipeline. */
  stage_kv: KvShapeOfStage | undefined;
  /** What its prefix cache found of prompts, since the worker started. */
  readonly prefix_cache: PrefixCacheCounts = { queried_tokens: 0, found_tokens: 0 };
  /** See `ModelLoad`. */
  handover_tokens_min: number | undefined;
  /** Names what its file says; undefined until that was hashed. */
  digest: string | undefined;

  #borrowers = 0;
  #closing = false;

  constructor(config: NativeModel) {
    this.config = config;
  }

  /** Its stage of a layout to come is on its way. */
  prepare(refactoring: number, config: NativeModel): void {
    this.#layouts = new Map([
      [this.#layout, this.config],
      [refactoring, config],
    ]);
  }

  /**
   * The stage that this change has brought is computed from now on; undefined: the one before any.
   * @param stats of that stage
   */
  computes(refactoring: number | undefined, stats: EngineStats): void {
    this.config = this.#layouts.get(refactoring) ?? this.config;
    this.#layout = refactoring;
    this.stats = stats;
  }

  /** What its agent is told of it in the state that it is in. */
  get told(): FromWorker & { type: 'model' } {
    const told: FromWorker & { type: 'model' } = {
      type: 'model',
      name: this.config.name,
      state: this.state,
    };
    if (this.info) told.precision = this.info.file_type;
    if (this.stats) {
      told.layouts = this.stats.layouts;
      told.streamed = toldWeights(this.stats);
    }
    return told;
  }

  /** Longest sequence, prompt and answer, in tokens. */
  get context_tokens(): number {
    return Math.min(this.config.context_tokens, this.stats?.kv_tokens_total ?? this.config.kv_tokens);
  }

  /** Sequences that run at once, at most: as many as were asked for, until its engine says how many do. */
  get max_sequences(): number {
    return this.stats?.max_sequences ?? this.config.max_sequences;
  }

  /** @throws HpcserveError E_NATIVE_TOKENIZER, E_REQUEST_TEMPLATE, E_MODEL_UNREADABLE */
  openText(): ModelText {
    const { model_path, chat_template_file } = this.config;
    const vocabulary = Vocabulary.open(model_path);
    try {
      const { template, tool_template, tool_format } = readTemplates(vocabulary, chat_template_file);
      const control: string[] = [];
      for (let token = 0; token < vocabulary.n_tokens; token++)
        if (vocabulary.isControl(token)) control.push(vocabulary.text(token));
      let longest_token_bytes = 1;
      const utf8 = classifyTokens(vocabulary.n_tokens, (token) => {
        const bytes = vocabulary.piece(token, true);
        longest_token_bytes = Math.max(longest_token_bytes, bytes.length);
        return bytes;
      });
      const reasons = [template, tool_template].some((one) => one && templateReasons(one.source));
      const preserved = new Set<number>();
      const ofCalls = tool_format ? [tool_format.open, ...(tool_format.marks ?? [])] : [];
      for (const mark of [...ofCalls, ...(reasons ? reasoningMarks : [])]) {
        const tokens = vocabulary.tokenize(mark, { add_special: false, parse_special: true });
        if (tokens.length === 1 && vocabulary.isControl(tokens[0]!)) preserved.add(tokens[0]!);
      }
      this.text = {
        vocabulary,
        pieces: new CachedPieces(vocabulary),
        template,
        tool_template,
        guard: new ControlTextGuard(control),
        tool_format,
        reasons,
        preserved,
        longest_token_bytes,
        utf8,
      };
      return this.text;
    } catch (error) {
      vocabulary.close();
      throw error;
    }
  }

  /** It loads again: its file is the same, and so is its text; nothing of its engine is true any more. */
  reopen(): void {
    this.state = 'loading';
    this.stats = undefined;
    this.compute_ms = undefined;
    this.kv = undefined;
    this.stage_kv = undefined;
    this.progress = undefined;
  }

  /** Keeps the vocabulary open until `release`: an answer may be written long after its last token was computed. */
  borrow(): void {
    this.#borrowers++;
  }

  release(): void {
    this.#borrowers--;
    this.#freeText();
  }

  /** Only once the compute thread has let go of the vocabulary; answers that are under way keep it a little longer. */
  closeText(): void {
    this.#closing = true;
    this.#freeText();
  }

  #freeText(): void {
    if (!this.#closing || this.#borrowers > 0) return;
    this.text?.vocabulary.close();
    this.text = undefined;
  }

  /** How far its weights are, while they are on their way. */
  progress: LoadProgress | undefined;

  get load(): ModelLoad {
    const load: ModelLoad = {
      name: this.config.name,
      state: this.state,
      running: this.stats?.running ?? 0,
      waiting: this.stats?.waiting ?? 0,
      max_sequences: this.max_sequences,
      kv_tokens_total: this.stats?.kv_tokens_total ?? 0,
      kv_tokens_used: this.stats?.kv_tokens_used ?? 0,
    };
    if (this.prefix_cache.queried_tokens > 0) load.prefix_cache = { ...this.prefix_cache };
    if (this.handover_tokens_min !== undefined) load.handover_tokens_min = this.handover_tokens_min;
    if (this.too_slow) load.too_slow = true;
    if (this.weights) load.weights = this.weights;
    const stages = this.stats?.stages?.filter(({ computed_us }) => computed_us > 0) ?? [];
    if (stages.length > 0) load.stages = stages;
    const streamed = this.stats && toldWeights(this.stats);
    if (streamed) load.streamed = streamed;
    if (this.stats && this.compute_ms !== undefined) load.compute_ms = this.compute_ms;
    return load;
  }
}

type Templates = Pick<ModelText, 'template' | 'tool_template' | 'tool_format'>;

/** @param chosen file of a template that stands for all of the model's own */
function readTemplates(vocabulary: Vocabulary, chosen: string | undefined): Templates {
  const textOf = (token: number | undefined) => (token === undefined ? '' : vocabulary.text(token));
  const tokens = { bos_token: textOf(vocabulary.bos), eos_token: textOf(vocabulary.eos) };
  const source = chosen === undefined ? vocabulary.chat_template : read(chosen);
  const template = new ChatTemplate(source, tokens);
  const ofTools = chosen === undefined ? vocabulary.tool_template : undefined;
  const tool_format = ofTools === undefined ? undefined : toolFormatOf(ofTools);
  // A template whose calls nobody here reads is of no use.
  if (tool_format === undefined)
    return { template, tool_template: undefined, tool_format: toolFormatOf(template.source) };
  return { template, tool_template: new ChatTemplate(ofTools, tokens), tool_format };
}

function read(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    throw new HpcserveError('E_MODEL_UNREADABLE', {
      what: `the chat template ${file} cannot be read`,
      because: error instanceof Error ? error.message : String(error),
      cause: error,
    });
  }
}
