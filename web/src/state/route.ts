/** Which page is shown: `#/models`, `#/chat?model=…`. What lies behind the `#` never leaves the browser. */
import { Store } from './store.ts';

export const pages = [
  { name: 'models', title: 'Models', key: 'm' },
  { name: 'jobs', title: 'Jobs', key: 'j' },
  { name: 'live', title: 'Live', key: 'l' },
  { name: 'usage', title: 'Usage', key: 'u' },
  { name: 'keys', title: 'Keys', key: 'k' },
  { name: 'chat', title: 'Chat', key: 'c' },
] as const;
export type PageName = (typeof pages)[number]['name'];

export interface Route {
  page: PageName;
  query: URLSearchParams;
}

export const route = new Store<Route>(read());
window.addEventListener('hashchange', () => route.set(read()));

function read(): Route {
  const [path = '', query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  const page = pages.find(({ name }) => name === path)?.name ?? 'models';
  return { page, query: new URLSearchParams(query) };
}

export function linkTo(page: PageName, query: Record<string, string> = {}): string {
  const text = new URLSearchParams(query).toString();
  return `#/${page}${text ? `?${text}` : ''}`;
}

export function goTo(page: PageName): void {
  location.hash = linkTo(page);
}
