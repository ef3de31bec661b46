/**
 * Clients of others for JavaScript, from npm's registry: two folders, since the earlier ones want an earlier zod, and
 * the Node that the current ones ask for. Every package has the version of `sdks/*` / `package-lock.json`.
 */
import { copyFileSync, existsSync, mkdirSync, readFileSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { sdkGenerations, sdkNodeIn } from './environments.ts';
import { madeOnce, NotHere, run } from './making.ts';

const files = ['package.json', 'package-lock.json'] as const;
const given = (generation: string, file: string): string =>
  join(packageRoot, 'test/engines/sdks', generation, file);

export async function makeSdks(say: (line: string) => void): Promise<void> {
  const recipe = JSON.stringify(
    sdkGenerations.flatMap((generation) =>
      files.map((file) => readFileSync(given(generation, file), 'utf8')),
    ),
  );
  await madeOnce('sdks', recipe, say, async (folder) => {
    for (const generation of sdkGenerations) {
      const into = join(folder, generation);
      mkdirSync(into);
      for (const file of files) copyFileSync(given(generation, file), join(into, file));
      const { dependencies } = JSON.parse(readFileSync(join(into, 'package.json'), 'utf8')) as {
        dependencies: Record<string, string>;
      };
      say(Object.keys(dependencies).join(', '));
      // Behind a symbolic link npm takes the folder for a package of the one that has the link.
      await run(['npm', 'ci', '--prefix', realpathSync(into), '--ignore-scripts', '--no-audit', '--no-fund']);
    }
    const node = sdkNodeIn(folder);
    if (!existsSync(node)) throw new NotHere(`npm has no Node for ${process.platform}-${process.arch}`);
    say(`on Node ${(await run([node, '--version'])).trim()}`);
  });
}
