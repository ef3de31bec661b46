import type { SiteConfig } from '../../spec/site.ts';

/** `user@site`: how a provider is called. Its key is what it is. */
export function providerName(site: Pick<SiteConfig, 'name' | 'provider'>, user: string): string {
  return `${user}@${site.provider ?? site.name}`;
}
