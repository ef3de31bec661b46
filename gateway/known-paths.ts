/** Which methods each path takes, for refusals of others; names and rests of paths (`:id`, `*`) included. */
export class KnownPaths {
  readonly #routes = new Map<string, { pattern: RegExp; methods: string[] }>();

  add(url: string, methods: readonly string[]): void {
    const known = this.#routes.get(url);
    if (known) known.methods.push(...methods);
    else this.#routes.set(url, { pattern: patternOf(url), methods: [...methods] });
  }

  /** Undefined where there is nothing at the path. */
  methodsOf(path: string): string[] | undefined {
    const found = [...this.#routes.values()].filter(({ pattern }) => pattern.test(path));
    return found.length === 0 ? undefined : [...new Set(found.flatMap(({ methods }) => methods))];
  }
}

function patternOf(url: string): RegExp {
  const parts = url
    .split(/(:\w+|\*)/)
    .map((part) =>
      part === '*' ? '.+' : part.startsWith(':') ? '[^/]+' : part.replace(/[.+?^${}()|[\]\\]/g, '\\$&'),
    );
  return new RegExp(`^${parts.join('')}$`);
}
