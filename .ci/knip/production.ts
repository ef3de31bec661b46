/**
 * What no entry of the product reaches: tests and benches do not count (`knip --production` reads what ends with `!`).
 */
import type { KnipConfig } from 'knip';
import { productionEntries, productSources, simulators } from './entries.ts';

const config: KnipConfig = {
  entry: productionEntries.map((path) => `${path}!`),
  project: [
    `${productSources}!`,
    ...simulators.map((path) => `!${path.endsWith('/') ? `${path}**` : path}!`),
  ],
  // A function that its own file uses may be exported for its test, where it is pure: an input, an answer.
  ignoreExportsUsedInFile: true,
};
export default config;
