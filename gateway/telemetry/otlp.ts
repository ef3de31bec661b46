/** Spans in the JSON of OTLP 1.x (opentelemetry-proto, `ExportTraceServiceRequest`). */

/** Numbers of `SpanKind`. */
export const spanKinds = { internal: 1, server: 2, client: 3 } as const;

export type Attributes = Readonly<Record<string, string | number | boolean | readonly string[] | undefined>>;

export interface SpanEvent {
  name: string;
  time_ms: number;
  attributes?: Attributes;
}

/** A piece of work that is over. Times are Unix ms. */
export interface Span {
  trace_id: string;
  span_id: string;
  parent_id?: string | undefined;
  name: string;
  kind: keyof typeof spanKinds;
  start_ms: number;
  end_ms: number;
  attributes: Attributes;
  events?: readonly SpanEvent[];
  /** Why it failed; absent: it did not. */
  error?: string | undefined;
}

export interface OtlpSource {
  /** What the spans are of: `service.name` and the like. */
  resource: Attributes;
  version: string;
}

const failed = 2;

/** The body of a request to `/v1/traces`. */
export function otlpTraces({ resource, version }: OtlpSource, spans: readonly Span[]): string {
  const scope = { name: 'hpcserve', version };
  const scopeSpans = [{ scope, spans: spans.map(spanJson) }];
  return JSON.stringify({
    resourceSpans: [{ resource: { attributes: attributesJson(resource) }, scopeSpans }],
  });
}

function spanJson(span: Span): object {
  const { trace_id, span_id, parent_id, name, kind, start_ms, end_ms, attributes, events = [], error } = span;
  return {
    // Ids are hex here, and not base64 as bytes of other messages in JSON.
    traceId: trace_id,
    spanId: span_id,
    parentSpanId: parent_id,
    name,
    kind: spanKinds[kind],
    startTimeUnixNano: nanoseconds(start_ms),
    endTimeUnixNano: nanoseconds(Math.max(start_ms, end_ms)),
    attributes: attributesJson(attributes),
    events: events.map((event) => ({
      name: event.name,
      timeUnixNano: nanoseconds(event.time_ms),
      attributes: attributesJson(event.attributes ?? {}),
    })),
    status: error === undefined ? {} : { code: failed, message: error },
  };
}

/** As text: a 64-bit number is no number of JSON. */
function nanoseconds(time_ms: number): string {
  return `${Math.round(time_ms * 1000)}000`;
}

function attributesJson(attributes: Attributes): object[] {
  return Object.entries(attributes).flatMap(([key, value]) =>
    value === undefined ? [] : [{ key, value: valueJson(value) }],
  );
}

function valueJson(value: string | number | boolean | readonly string[]): object {
  if (typeof value === 'string') return { stringValue: value };
  if (typeof value === 'boolean') return { boolValue: value };
  if (typeof value === 'number')
    return Number.isSafeInteger(value) ? { intValue: String(value) } : { doubleValue: value };
  return { arrayValue: { values: value.map((stringValue) => ({ stringValue })) } };
}
