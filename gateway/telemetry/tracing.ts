import { version } from '../../host/version.ts';
import type { OtelSettings } from '../../spec/otel-settings.ts';
import type { GatewayLog } from '../log.ts';
import type { AcceptedRequest } from '../relay/accepted-request.ts';
import type { Attributes, Span } from './otlp.ts';
import { RequestSpans } from './request-spans.ts';
import { SpanExporter } from './span-exporter.ts';
import { isSampled, newSpanId, newTraceId, parseTraceparent } from './trace-context.ts';

type Environment = Readonly<Record<string, string | undefined>>;

export interface TracingOptions {
  settings: Partial<OtelSettings>;
  /** Whose variables of OpenTelemetry count where the settings name no receiver. */
  environment: Environment;
  /** Which gateway it is. */
  resource: Attributes;
  log: GatewayLog;
  /** See `SpanExporterOptions`. */
  interval_ms?: number | undefined;
}

/** Traces requests, where somebody wants their traces. */
export class Tracing {
  readonly #exporter: SpanExporter;
  readonly #sample: number;

  private constructor(exporter: SpanExporter, sample: number) {
    this.#exporter = exporter;
    this.#sample = sample;
  }

  /** @returns undefined where no receiver is named */
  static open({ settings, environment, resource, log, interval_ms }: TracingOptions): Tracing | undefined {
    const url = receiverOf(settings, environment);
    if (url === undefined) return undefined;
    const headers = headersOf(environment);
    const service = environment.OTEL_SERVICE_NAME || 'hpcserve-gateway';
    const source = {
      resource: { 'service.name': service, 'service.version': version, ...resource },
      version,
    };
    const { origin, pathname } = new URL(url);
    log.info({ receiver: origin + pathname }, 'requests are traced');
    const exporter = new SpanExporter({ url, headers, source, log, interval_ms });
    return new Tracing(exporter, settings.sample ?? 1);
  }

  /** @returns undefined for a request that is not in the sample, by its client's word or by chance */
  begin(of: AcceptedRequest): RequestSpans | undefined {
    const parent = parseTraceparent(of.request.headers.traceparent);
    const trace_id = parent?.trace_id ?? newTraceId();
    if (!(parent?.sampled ?? isSampled(trace_id, this.#sample))) return undefined;
    const context = { trace_id, span_id: newSpanId(), sampled: true };
    return new RequestSpans(of, context, parent?.span_id, (span) => this.add(span));
  }

  add(span: Span): void {
    this.#exporter.add(span);
  }

  close(): Promise<void> {
    return this.#exporter.close();
  }
}

/** By OpenTelemetry's rules: a URL for traces alone is taken as it is, a base gets the path. */
function receiverOf({ endpoint }: Partial<OtelSettings>, environment: Environment): string | undefined {
  const { OTEL_SDK_DISABLED, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT } = environment;
  if (OTEL_SDK_DISABLED?.toLowerCase() === 'true') return undefined;
  if (endpoint === undefined && OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) return OTEL_EXPORTER_OTLP_TRACES_ENDPOINT;
  const base = endpoint ?? OTEL_EXPORTER_OTLP_ENDPOINT;
  return base ? `${base.replace(/\/+$/, '')}/v1/traces` : undefined;
}

/** `name=value,name=value`, values as in a URL; tokens for the receiver stand in the environment alone. */
function headersOf({ OTEL_EXPORTER_OTLP_TRACES_HEADERS, OTEL_EXPORTER_OTLP_HEADERS }: Environment) {
  const text = OTEL_EXPORTER_OTLP_TRACES_HEADERS || OTEL_EXPORTER_OTLP_HEADERS || '';
  const pairs = text.split(',').flatMap((pair) => {
    const at = pair.indexOf('=');
    return at < 1 ? [] : [[pair.slice(0, at).trim(), decoded(pair.slice(at + 1).trim())] as const];
  });
  return Object.fromEntries(pairs);
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
