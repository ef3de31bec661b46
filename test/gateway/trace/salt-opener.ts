/**
 * A gateway that opens the salt of its site: `node salt-opener.js`. It is told `TIME FOLDER` by a line of stdin, opens
 * the salt of that folder when the time has come, and writes the hashes that it makes of a prompt.
 */
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { parseRequest } from '../../../gateway/relay/request-body.ts';
import { RequestScan } from '../../../gateway/relay/request-scan.ts';
import { PromptTracer } from '../../../gateway/trace/prompt-tracer.ts';

const body = Buffer.from(JSON.stringify({ model: 'tiny', prompt: 'the same prompt. '.repeat(20) }));
const request = parseRequest(new RequestScan(body).finish(), 'completions');

for await (const line of createInterface({ input: process.stdin })) {
  const [time_ms, folder] = line.split(' ');
  while (Date.now() < Number(time_ms));
  const tracer = PromptTracer.open(join(folder!, 'trace.salt'));
  process.stdout.write(`${tracer.traceOf(request).prefix.toString('hex')}\n`);
}
