/** Light, dark, or as the system has it. Kept over visits; it is no secret. */
import { Store } from './store.ts';

export const themes = ['system', 'light', 'dark'] as const;
export type Theme = (typeof themes)[number];

const storageName = 'hpcserve.theme';
const found = themes.find((each) => each === localStorage.getItem(storageName));
export const theme = new Store<Theme>(found ?? 'system');

const prefersDark = matchMedia('(prefers-color-scheme: dark)');
/** What is seen now; charts are drawn with it. */
export const isDark = new Store(false);

function apply(): void {
  document.documentElement.dataset.theme = theme.value;
  isDark.set(theme.value === 'dark' || (theme.value === 'system' && prefersDark.matches));
}

prefersDark.addEventListener('change', apply);
theme.watch(() => {
  localStorage.setItem(storageName, theme.value);
  apply();
});
apply();
