/** What the node agent says of an installed engine that it was asked to look at (`--probe`), as `doctor` reads it. */
import { z } from 'zod';

export const engineReportSchema = z.object({
  version: z.string(),
  /** Whether it listens on unix sockets. */
  unix_socket: z.boolean(),
  /** Options that it was found to have; absent: it was not found out. */
  options: z.int().optional(),
  tool_parsers: z.array(z.string()),
  reasoning_parsers: z.array(z.string()),
  /** Versions that were run behind an agent, and those whose sources the probe was tried on; empty: nobody says. */
  versions_run: z.array(z.string()),
  versions_read: z.array(z.string()),
});
export type EngineReport = z.infer<typeof engineReportSchema>;
