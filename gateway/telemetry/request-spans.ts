import type { RequestRecord } from '../../ledger/index.ts';
import { printableName } from '../../spec/printable-name.ts';
import { clientPaths } from '../../spec/wire.ts';
import { parseTimings, type WorkerTimings, workerPhases } from '../../spec/worker-timings.ts';
import type { AcceptedRequest } from '../relay/accepted-request.ts';
import type { AttemptResult } from '../relay/attempt-result.ts';
import type { Replica } from '../routing/replica.ts';
import type { SessionLink } from '../session-link.ts';
import type { Attributes, Span, SpanEvent } from './otlp.ts';
import { formatTraceparent, newSpanId, type TraceContext } from './trace-context.ts';

/** By the GenAI semantic conventions. */
const operations: ReadonlyMap<string, string> = new Map([
  ['/v1/chat/completions', 'chat'],
  ['/v1/responses', 'chat'],
  ['/v1/completions', 'text_completion'],
  ['/v1/embeddings', 'embeddings'],
  [clientPaths.tokenize, 'tokenize'],
  [clientPaths.detokenize, 'detokenize'],
]);

type AddSpan = (span: Span) => void;

/**
 * One request as a tree of spans, by OpenTelemetry's conventions for generative AI. No word of a prompt or an answer is
 * in it.
 *
 * ```
 *   chat MODEL (server)                  from the request's arrival to what is decided of it
 *   ├─ chat MODEL (client)               an attempt with one replica
 *   │  └─ serve MODEL (server)           its node agent's part
 *   │     └─ compute MODEL (internal)    its device worker's, of native replicas: events queue, prefill and decode
 *   └─ chat MODEL (client)               another one
 * ```
 */
export class RequestSpans {
  readonly #of: AcceptedRequest;
  readonly #context: TraceContext;
  readonly #parent_id: string | undefined;
  readonly #add: AddSpan;
  readonly #asked: Attributes;
  #attempts = 0;

  /** @param parent_id of the client's span, where it has one */
  constructor(of: AcceptedRequest, context: TraceContext, parent_id: string | undefined, add: AddSpan) {
    this.#of = of;
    this.#context = context;
    this.#parent_id = parent_id;
    this.#add = add;
    const { endpoint, parsed } = of;
    this.#asked = {
      'gen_ai.operation.name': operations.get(endpoint.path) ?? endpoint.path,
      'gen_ai.provider.name': 'hpcserve',
      'gen_ai.request.model': printableName(parsed.model),
    };
  }

  attempt(replica: Replica<SessionLink>): AttemptSpans {
    return new AttemptSpans(this.#context, this.#named, replica, ++this.#attempts, {
      asked: this.#asked,
      now_ms: () => this.#now_ms(),
      add: this.#add,
    });
  }

  /** The outcome is decided. */
  end(record: RequestRecord): void {
    const { time_ms, parsed, endpoint, request_id } = this.#of;
    const { status, error_code, finish_reason } = record;
    this.#add({
      ...this.#context,
      parent_id: this.#parent_id,
      name: this.#named,
      kind: 'server',
      start_ms: time_ms,
      end_ms: this.#now_ms(),
      attributes: {
        ...this.#asked,
        'gen_ai.request.max_tokens': parsed.max_tokens,
        'gen_ai.request.choice.count': parsed.choices === 1 ? undefined : parsed.choices,
        'gen_ai.response.model': record.served_model,
        'gen_ai.response.finish_reasons': finish_reason === undefined ? undefined : [finish_reason],
        'gen_ai.usage.input_tokens': record.prompt_tokens,
        'gen_ai.usage.output_tokens': record.completion_tokens,
        'gen_ai.usage.cache_read.input_tokens': record.cached_tokens,
        'http.request.method': 'POST',
        'http.route': endpoint.path,
        'http.response.status_code': status,
        'error.type': error_code ?? (status >= 400 ? String(status) : undefined),
        'hpcserve.request_id': request_id,
        'hpcserve.attempts': record.attempts,
        'hpcserve.ttft_ms': record.ttft_ms,
        'hpcserve.device_s': record.device_s,
      },
      error: status >= 500 ? (error_code ?? `status ${status}`) : undefined,
    });
  }

  get #named(): string {
    return `${this.#asked['gen_ai.operation.name']} ${this.#asked['gen_ai.request.model']}`;
  }

  /** The moment of its arrival by the clock, and from there on by one that does not jump. */
  #now_ms(): number {
    const { time_ms, began_ms } = this.#of;
    return time_ms + performance.now() - began_ms;
  }
}

interface AttemptFacts {
  asked: Attributes;
  now_ms(): number;
  add: AddSpan;
}

/** One attempt with one replica. */
export class AttemptSpans {
  readonly #context: TraceContext;
  readonly #parent_id: string;
  readonly #name: string;
  readonly #replica: Replica<SessionLink>;
  readonly #number: number;
  readonly #facts: AttemptFacts;
  readonly #start_ms: number;
  #ended = false;

  constructor(
    { trace_id, span_id, sampled }: TraceContext,
    name: string,
    replica: Replica<SessionLink>,
    number: number,
    facts: AttemptFacts,
  ) {
    this.#context = { trace_id, span_id: newSpanId(), sampled };
    this.#parent_id = span_id;
    this.#name = name;
    this.#replica = replica;
    this.#number = number;
    this.#facts = facts;
    this.#start_ms = facts.now_ms();
  }

  /** With which the replica is asked, so that what an engine traces itself belongs to this attempt. */
  get traceparent(): string {
    return formatTraceparent(this.#context);
  }

  /** @param result absent: it was given up */
  end(result: AttemptResult | undefined): void {
    if (this.#ended) return;
    this.#ended = true;
    const { session, served } = this.#replica;
    const { session_id, node, engine, deployment, job_id, devices } = session.facts;
    const failure = result && 'reason' in result ? result.reason.message : undefined;
    this.#facts.add({
      ...this.#context,
      parent_id: this.#parent_id,
      name: this.#name,
      kind: 'client',
      start_ms: this.#start_ms,
      end_ms: this.#facts.now_ms(),
      attributes: {
        ...this.#facts.asked,
        'gen_ai.response.model': served.name,
        'server.address': node,
        'hpcserve.attempt': this.#number,
        'hpcserve.result': result?.kind ?? 'given_up',
        'hpcserve.session': session_id,
        'hpcserve.engine': engine,
        'hpcserve.deployment': deployment,
        'hpcserve.job_id': job_id,
        'hpcserve.devices': devices,
      },
      error: failure,
    });
  }

  /** What the node says of where the time went, when its answer is whole. What cannot be read is left out. */
  computed(said: string | undefined): void {
    const timings = said === undefined ? undefined : parseTimings(said);
    if (!timings) return;
    const end_ms = this.#facts.now_ms();
    const { agent } = timings;
    const served_by = agent === undefined ? this.#context.span_id : this.#serve(end_ms, agent);
    if (timings.queue !== undefined) this.#compute(served_by, end_ms, timings);
  }

  /** @returns its id */
  #serve(end_ms: number, agent_ms: number): string {
    const span_id = newSpanId();
    const { served } = this.#replica;
    this.#facts.add({
      trace_id: this.#context.trace_id,
      span_id,
      parent_id: this.#context.span_id,
      name: `serve ${served.name}`,
      kind: 'server',
      start_ms: this.#beginOf(end_ms, agent_ms),
      end_ms,
      attributes: this.#place,
    });
    return span_id;
  }

  #compute(parent_id: string, end_ms: number, timings: WorkerTimings): void {
    const start_ms = this.#beginOf(end_ms, sumOf(timings));
    const events: SpanEvent[] = [];
    let at_ms = start_ms;
    for (const phase of workerPhases) {
      const duration_ms = timings[phase];
      if (duration_ms === undefined) break;
      events.push({ name: phase, time_ms: at_ms, attributes: { 'hpcserve.duration_ms': duration_ms } });
      at_ms += duration_ms;
    }
    this.#facts.add({
      trace_id: this.#context.trace_id,
      span_id: newSpanId(),
      parent_id,
      name: `compute ${this.#replica.served.name}`,
      kind: 'internal',
      start_ms,
      end_ms,
      attributes: this.#place,
      events,
    });
  }

  /** The node's own clock may be wrong; that its answer has just ended is known here. */
  #beginOf(end_ms: number, duration_ms: number): number {
    return Math.max(this.#start_ms, end_ms - duration_ms);
  }

  get #place(): Attributes {
    const { node, session_id } = this.#replica.session.facts;
    return { 'host.name': node, 'hpcserve.session': session_id };
  }
}

function sumOf(timings: WorkerTimings): number {
  return workerPhases.reduce((sum, phase) => sum + (timings[phase] ?? 0), 0);
}
