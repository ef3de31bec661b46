/**
 * A site as work over several sites sees it: by the commands that people type there. How one is run, as a process of
 * this machine or over ssh, is the caller's; the words, the answers and the errors are the same.
 */

import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';

export interface SiteCommands {
  /** Of the site config. */
  readonly name: string;
  /** Host that its login node was reached by; absent: it is this machine. */
  readonly host?: string;
  /** Makes a model.yaml of this machine known there, as it is. @returns its path there */
  bringFile(path: string): Promise<string>;
  /**
   * The same with another text, which stays there.
   * @param path of the file that it was made from: what it names lies beside that
   */
  bringShare(path: string, name: string, text: string): Promise<string>;
  /** @returns the path there of a file with this text */
  bringPlan(name: string, text: string): Promise<string>;
  /** @returns the JSON that a command printed; its lines are also told as they come. @throws what it failed with */
  run(argv: readonly string[], onLine?: (line: string) => void): Promise<string>;
  /** @returns what a command prints for people. @throws as `run` */
  show(argv: readonly string[]): Promise<string>;
}

/** Whom work over several sites tells how it goes. */
export interface SitesView {
  note(line: string): void;
  /** What happens at one site, until it is closed. */
  progress(site: string): { show(event: ProgressEvent): void; close(): void };
}

/** The same error with the name of its site before it: of several, people read which it is about first. */
export function atSite(site: string, thrown: unknown): HpcserveError {
  const error = HpcserveError.from(thrown);
  if (error.details.at_site !== undefined) return error;
  return HpcserveError.fromJSON({
    ...error.toJSON(),
    what: `${site}: ${error.message}`,
    details: { ...error.details, at_site: site },
  });
}
