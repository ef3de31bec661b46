/** What neither an entry of the product reaches nor a bench. */
import type { KnipConfig } from 'knip';
import { benchEntries, productionEntries, productSources } from './entries.ts';

const config: KnipConfig = {
  entry: [...productionEntries, ...benchEntries].map((path) => `${path}!`),
  project: [`${productSources}!`, 'bench/**/*.ts!'],
  ignoreExportsUsedInFile: true,
};
export default config;
