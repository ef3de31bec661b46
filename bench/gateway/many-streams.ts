/** What the gateway takes of memory while many streams are open through it and all of them flow. */
import { readFileSync } from 'node:fs';
import { readStreams, type StreamsRead } from './sse.ts';

/** So slow and so long that all are open for many seconds; connections are made a few at a time. */
export const manyStreams = { streams: 2000, events: 90, pause_ms: 1000, opening: 32 };

/**
 * Opens all streams, and looks four times a second at the gateway while they flow.
 *
 * @returns most memory seen, and that before; bytes (PSS)
 */
export async function memoryOfStreams(
  pid: number,
  url: string,
  key: string,
  body: string,
  { streams, opening }: Pick<typeof manyStreams, 'streams' | 'opening'> = manyStreams,
): Promise<StreamsRead & { pss_bytes: number; idle_bytes: number }> {
  const idle_bytes = pss(pid);
  let pss_bytes = idle_bytes;
  const watching = setInterval(() => {
    pss_bytes = Math.max(pss_bytes, pss(pid));
  }, 250);
  try {
    const read = await readStreams(url, key, body, streams, opening);
    return { ...read, pss_bytes, idle_bytes };
  } finally {
    clearInterval(watching);
  }
}

/** Proportional set size of a process: what it has alone, and its share of what it shares; bytes. */
function pss(pid: number): number {
  const match = /^Pss:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'));
  if (!match) throw new Error('this kernel does not tell the proportional set size');
  return Number(match[1]) * 1024;
}
