/** Where traces of requests go: `otel` of a site config. */
import { z } from 'zod';

export const otelSchema = z.strictObject({
  endpoint: z
    .url({ protocol: /^https?$/ })
    .optional()
    .describe(
      'Base URL of an OTLP/HTTP receiver, such as http://collector:4318; traces go to its /v1/traces. Absent: what OTEL_EXPORTER_OTLP_ENDPOINT of the gateway’s environment says, else nothing is traced.',
    ),
  sample: z
    .number()
    .min(0)
    .max(1)
    .default(1)
    .describe(
      'Share of requests that are traced, where the client does not say by its `traceparent`. Lower: less to send and to store.',
    ),
});
export type OtelSettings = z.infer<typeof otelSchema>;
