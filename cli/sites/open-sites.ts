/** The sites that a command works on, opened for as long as it runs. */
import type { SiteCommands } from '../../control/sites/site-commands.ts';
import type { LoadedSite } from '../../control/state/site-files.ts';
import type { CliContext } from '../context.ts';
import { type OpenSite, openSiteCommands } from './open-site.ts';

/** Closed with `dispose`. */
export class SeveralSites implements Disposable {
  readonly #sites: readonly OpenSite[];

  private constructor(sites: readonly OpenSite[]) {
    this.#sites = sites;
  }

  get sites(): readonly SiteCommands[] {
    return this.#sites;
  }

  /**
   * One after the other: each may ask at the terminal. @throws HpcserveError of the first that cannot be reached, with
   * its name
   */
  static async open(context: CliContext, loaded: readonly LoadedSite[]): Promise<SeveralSites> {
    const sites: OpenSite[] = [];
    const several = new SeveralSites(sites);
    try {
      for (const site of loaded) sites.push(await openSiteCommands(context, site));
      return several;
    } catch (error) {
      several[Symbol.dispose]();
      throw error;
    }
  }

  [Symbol.dispose](): void {
    for (const site of this.#sites) site.close();
  }
}
