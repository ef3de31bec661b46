/** An OTLP/HTTP receiver in this process, which refuses what opentelemetry-proto's JSON mapping does not have. */
import { createServer, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { z } from 'zod';

const hex = (digits: number) => z.string().regex(new RegExp(`^[0-9a-f]{${digits}}$`));
const time = z.string().regex(/^\d{19}$/);
const value = z.union([
  z.strictObject({ stringValue: z.string() }),
  z.strictObject({ boolValue: z.boolean() }),
  z.strictObject({ intValue: z.string().regex(/^-?\d+$/) }),
  z.strictObject({ doubleValue: z.number() }),
  z.strictObject({
    arrayValue: z.strictObject({ values: z.array(z.strictObject({ stringValue: z.string() })) }),
  }),
]);
const attributes = z.array(z.strictObject({ key: z.string().min(1), value }));
const span = z.strictObject({
  traceId: hex(32),
  spanId: hex(16),
  parentSpanId: hex(16).optional(),
  name: z.string().min(1),
  kind: z.int().min(1).max(5),
  startTimeUnixNano: time,
  endTimeUnixNano: time,
  attributes,
  events: z.array(z.strictObject({ name: z.string().min(1), timeUnixNano: time, attributes })),
  status: z.strictObject({ code: z.int().min(0).max(2).optional(), message: z.string().optional() }),
});
const tracesSchema = z.strictObject({
  resourceSpans: z.array(
    z.strictObject({
      resource: z.strictObject({ attributes }),
      scopeSpans: z.array(
        z.strictObject({
          scope: z.strictObject({ name: z.string(), version: z.string() }),
          spans: z.array(span).min(1),
        }),
      ),
    }),
  ),
});

export type ReceivedSpan = z.infer<typeof span>;

/** Keeps the spans that it has been sent. */
export class OtlpReceiver {
  readonly spans: ReceivedSpan[] = [];
  readonly resources: Record<string, unknown>[] = [];
  readonly bodies: string[] = [];
  readonly headers: IncomingMessage['headers'][] = [];
  /** What it answers. */
  status = 200;
  /** What it could not read. */
  readonly refused: string[] = [];
  readonly #server: Server;

  private constructor() {
    this.#server = createServer(async (request, response) => {
      const body = await text(request);
      this.headers.push(request.headers);
      if (this.status !== 200) {
        response.writeHead(this.status).end();
        return;
      }
      const parsed = tracesSchema.safeParse(JSON.parse(body));
      const asked = `${request.method} ${request.url} ${request.headers['content-type']}`;
      if (!parsed.success || asked !== 'POST /v1/traces application/json') {
        this.refused.push(`${asked}: ${parsed.error?.message}`);
        response.writeHead(400).end();
        return;
      }
      this.bodies.push(body);
      for (const { resource, scopeSpans } of parsed.data.resourceSpans) {
        this.resources.push(attributesOf(resource.attributes));
        this.spans.push(...scopeSpans.flatMap(({ spans }) => spans));
      }
      response.writeHead(200, { 'content-type': 'application/json' }).end('{}');
    });
  }

  static async start(): Promise<OtlpReceiver> {
    const receiver = new OtlpReceiver();
    await new Promise<void>((resolve) => receiver.#server.listen(0, '127.0.0.1', resolve));
    return receiver;
  }

  get endpoint(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

/** As they were before they were wrapped. */
export function attributesOf(given: z.infer<typeof attributes>): Record<string, unknown> {
  return Object.fromEntries(
    given.map(({ key, value }) => {
      if ('intValue' in value) return [key, Number(value.intValue)];
      if ('arrayValue' in value) return [key, value.arrayValue.values.map(({ stringValue }) => stringValue)];
      return [key, Object.values(value)[0]];
    }),
  );
}
