// Loaded before a program of this folder (`node --import`): it finds packages in the folder of $HPCSERVE_TEST_PACKAGES,
// where `npm run engines -- sdks` put them, by their ordinary names.
import { registerHooks } from 'node:module';
import { pathToFileURL } from 'node:url';

const programs = new URL('.', import.meta.url).href;
const packages = pathToFileURL(`${process.env.HPCSERVE_TEST_PACKAGES}/package.json`).href;
const isPackage = (specifier) => !/^(\.|\/|node:|file:)/.test(specifier);

registerHooks({
  resolve(specifier, context, next) {
    const isOurs = isPackage(specifier) && context.parentURL?.startsWith(programs);
    return next(specifier, isOurs ? { ...context, parentURL: packages } : context);
  },
});
